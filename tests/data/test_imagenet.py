"""Parts of ImageNet: which image serves what, whose label it has, and what a network gets of its pixels."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lcprune import data
from lcprune.errors import DataError


def _image(number: int, size: tuple[int, int] = (20, 16)) -> Image.Image:
    """One colour: red counts, green and blue tell the channels apart."""
    return Image.new("RGB", size, (number, 100, 200))


def _folder(path: Path, names: list[str], count: int = 5) -> Path:
    for name in names:
        (path / name).mkdir(parents=True)
        for number in range(count):
            _image(number).save(path / name / f"{number}.png")
    return path


def _tar(path: Path, entries: list[tuple[str, Image.Image]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, image in entries:
            buffer = io.BytesIO()
            image.save(buffer, "webp", lossless=True)
            info = tarfile.TarInfo(name)
            info.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(info, buffer)
    return path


def _reds(dataset: data.Dataset, split: str) -> Iterator[tuple[int, int]]:
    """(label, red) of each image."""
    part = dataset.split(split)
    assert isinstance(part, data.FileSplit)
    return ((int(part.labels[i]), int(part.read(i)[0, 0, 2 if part.bgr else 0])) for i in range(len(part)))


def _as_folder(path: Path) -> Path:
    return _folder(path / "images", ["7", "12", "100"])


def _as_tars(path: Path) -> Path:
    (path / "tars").mkdir()
    for part, places in enumerate([range(3), range(3, 5)]):
        entries = [(f"{k}/{label:04d}.webp", _image(k, (8, 8))) for k in places for label in (7, 12, 100)]
        _tar(path / "tars" / f"part-{part}.tar", entries)
    return path / "tars"


@pytest.mark.parametrize("make", [_as_folder, _as_tars])
def test_two_of_five_images_of_each_class_are_to_work_with(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    dataset = data.load(f"imagenet:{make(tmp_path)},size=8", val=0)
    assert sorted(_reds(dataset, "train")) == [(label, red) for label in (7, 12, 100) for red in (0, 1)]
    assert sorted(_reds(dataset, "test")) == [(label, red) for label in (7, 12, 100) for red in (2, 3, 4)]
    assert (dataset.num_classes, dataset.input_shape, dataset.labelled) == (1000, (3, 8, 8), True)


def test_validation_images_are_taken_from_those_to_work_with(tmp_path: Path) -> None:
    dataset = data.load(f"imagenet:{_as_tars(tmp_path)},size=8", val=2)
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (4, 2, 9)


def test_synsets_are_labelled_in_their_order_if_all_are_there(tmp_path: Path) -> None:
    names = [f"n{number:08d}" for number in range(1000)]
    dataset = data.load(f"imagenet:{_folder(tmp_path, names, 1)}", val=0)
    assert dataset.classes == tuple(names)
    assert sorted([*dataset.train.labels.tolist(), *dataset.test.labels.tolist()]) == list(range(1000))


def test_some_synsets_are_refused_since_their_numbers_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 2 folders, n01440764 \.\.\..*named by its number, 0 to 999"):
        data.load(f"imagenet:{_folder(tmp_path, ['n01440764', 'n02100000'])}")


def test_images_without_labels_are_batches_of_inputs_alone(tmp_path: Path) -> None:
    for number in range(10):
        _image(number).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image")
    dataset = data.load(f"imagenet:{tmp_path},size=8")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (9, 1, 0)
    assert not dataset.labelled and dataset.num_classes == 1000
    for split in (dataset, dataset.decoded()):
        batches = list(split.batches("train", 4))
        assert [tuple(batch.shape) for batch in batches] == [(4, 3, 8, 8), (4, 3, 8, 8), (1, 3, 8, 8)]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("", [(3 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (200 / 255 - 0.406) / 0.225]),
        (",input=caffe", [200 - 103.939, 100 - 116.779, 3 - 123.68]),
        (",input=lite", [(3 - 127) / 128, (100 - 127) / 128, (200 - 127) / 128]),
    ],
)
def test_inputs_follow_the_convention_of_the_network(tmp_path: Path, option: str, expected: list[float]) -> None:
    _image(3).save(tmp_path / "one.png")
    dataset = data.load(f"imagenet:{tmp_path},size=8{option}", val=0)
    for one in (dataset, dataset.decoded()):
        (batch,) = one.batches("train", 1)
        wanted = torch.tensor(expected).view(1, 3, 1, 1).expand(1, 3, 8, 8)
        torch.testing.assert_close(batch, wanted, rtol=1e-5, atol=1e-4)


def _ramp(size: int) -> Image.Image:
    line = np.linspace(0, 255, size).astype(np.uint8)
    return Image.fromarray(np.repeat(np.repeat(line[None, :, None], size, 0), 3, 2))


def test_folders_are_cropped_and_packed_images_are_not(tmp_path: Path) -> None:
    (tmp_path / "folder" / "0").mkdir(parents=True)
    _ramp(256).save(tmp_path / "folder" / "0" / "0.png")
    _tar(tmp_path / "one.tar", [("0/0000.webp", _ramp(224))])
    cropped, packed = (data.load(f"imagenet:{tmp_path / name}", val=0).train.read(0) for name in ("folder", "one.tar"))
    assert np.array_equal(cropped, np.asarray(_ramp(256))[16:240, 16:240])
    assert np.array_equal(packed, np.asarray(_ramp(224)))
    smaller = data.load(f"imagenet:{tmp_path / 'one.tar'},size=112,resize=224", val=0).train.read(0)
    assert np.array_equal(smaller, np.asarray(_ramp(224))[56:168, 56:168])


def test_bicubic_differs_from_bilinear(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    plain, cubic = (
        data.load(f"imagenet:{tmp_path}{option},size=16", val=0).train.read(0) for option in ("", ",input=lite")
    )
    assert not np.array_equal(plain, cubic)
    reference = Image.fromarray(pixels).resize((16, 16), Image.Resampling.BICUBIC, box=(32 / 3, 32 / 3, 64 / 3, 64 / 3))
    assert np.abs(cubic.astype(int) - np.asarray(reference)).max() <= 1


def test_a_comma_in_the_path_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    _image(1).save(tmp_path / "a,b" / "one.png")
    assert data.load(f"imagenet:{tmp_path / 'a,b'},size=8", val=0).input_shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("input=bgr", "input=bgr: expected one of torchvision, caffe, lite"),
        ("size=big", "size=big: expected a number of pixels"),
        ("size=64,resize=32", "size=64 and resize=32: an input cannot be larger"),
        ("crop=3", "crop is no option; there are input, size and resize"),
    ],
)
def test_wrong_options_are_quoted(tmp_path: Path, options: str, message: str) -> None:
    _image(1).save(tmp_path / "one.png")
    with pytest.raises(DataError, match=message):
        data.load(f"imagenet:{tmp_path},{options}")


def test_a_tar_of_other_things_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds 0/cat\.webp: expected K/CLASS\.webp"):
        data.load(f"imagenet:{_tar(tmp_path / 'a.tar', [('0/cat.webp', _image(0))])}")
    (tmp_path / "b.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"b\.tar is not a readable tar"):
        data.load(f"imagenet:{tmp_path / 'b.tar'}")
    damaged = _tar(tmp_path / "c.tar", [("0/0000.webp", _image(0))])
    content = bytearray(damaged.read_bytes())
    content[512:520] = b"nonsense"
    damaged.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"c\.tar/0/0000\.webp is not a readable image"):
        data.load(f"imagenet:{damaged}", val=0).train.read(0)
