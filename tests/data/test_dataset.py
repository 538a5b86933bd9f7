"""Splits are seeded and disjoint, batches repeat, and augmentation is the usual crop and flip."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lcprune import data
from lcprune.data.arrays import Augmentation, draw_shifts, gather, pad_images
from lcprune.data.folders import stratified
from lcprune.errors import DataError


def _rows(split: data.Split) -> set[bytes]:
    assert isinstance(split, data.ArraySplit)
    return {image.numpy().tobytes() for image in split.images}


def test_the_digits_are_those_that_the_results_on_record_were_made_with() -> None:
    """To the bit, in this order: they were compared with scikit-learn's `load_digits` when they were stored."""
    pixels, labels = data.digits()
    assert (pixels.dtype, labels.dtype, pixels.max()) == (np.uint8, np.int64, 16)
    found = [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in (pixels, labels.astype(np.uint8))]
    assert found == ["8f26b2bd9d135c25", "8ba4f891220f5e4c"]
    dataset, digest = data.load("digits"), hashlib.sha256()
    for split in (dataset.train, dataset.val, dataset.test):
        digest.update(split.images.numpy().tobytes() + split.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == "02792ee577a7bf4a"
    assert (*dataset.mean, *dataset.std) == pytest.approx((0.30588542092775917, 0.37657033251061034), rel=1e-12)


def test_digits_splits_are_disjoint_and_seeded() -> None:
    first, again, other = (
        data.load("digits", seed=0),
        data.load("digits", seed=0),
        data.load("digits", seed=1),
    )
    assert len(first.train) + len(first.val) + len(first.test) == 1797
    assert not _rows(first.train) & _rows(first.val)
    assert not _rows(first.train) & _rows(first.test)
    assert _rows(first.val) == _rows(again.val)
    assert _rows(first.val) != _rows(other.val)
    assert _rows(first.test) == _rows(other.test), "the test split must not depend on the seed"


def test_validation_size_is_as_asked() -> None:
    assert len(data.load("digits", val=100).val) == 100
    assert len(data.load("digits", val=0.25).val) == round(0.25 * 1438)
    assert len(data.load("digits", val=0).train) == 1438
    with pytest.raises(DataError, match="val=1438"):
        data.load("digits", val=1438)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    fraction=st.floats(0, 0.9),
    seed=st.integers(0, 100),
)
def test_stratified_parts_are_a_partition_with_equal_shares(labels: list[int], fraction: float, seed: int) -> None:
    array = np.array(labels)
    rest, part = stratified(array, fraction, np.random.default_rng(seed))
    assert sorted([*rest, *part]) == list(range(len(labels)))
    assert len(part) == round(len(labels) * fraction)
    for label in set(labels):
        assert abs((array[part] == label).sum() - fraction * (array == label).sum()) <= 2


def test_batches_are_normalised_and_repeat() -> None:
    dataset = data.load("digits")
    batches = dataset.batches("train", 100, seed=3)
    first, second = list(batches), list(batches)
    assert len(batches) == len(first) == 13 and batches.images == 1294
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))
    pixels = torch.cat([images for images, _ in first])
    assert pixels.dtype == torch.float32 and pixels.shape == (1294, 1, 8, 8)
    assert pixels.mean().abs() < 0.05 and (pixels.std() - 1).abs() < 0.05


def test_a_limited_draw_has_no_repeats_and_other_seeds_differ() -> None:
    dataset = data.load("digits")
    labels = [torch.cat([y for _, y in dataset.batches("train", 64, limit=200, seed=seed)]) for seed in (0, 1)]
    assert [len(part) for part in labels] == [200, 200]
    assert not torch.equal(labels[0], labels[1])
    batches = dataset.batches("train", 64, limit=200, seed=0)
    assert len(set(batches.order.tolist())) == 200


def test_wrong_requests_say_so() -> None:
    dataset = data.load("digits", val=0)
    with pytest.raises(DataError, match="'valid'"):
        dataset.batches("valid")
    with pytest.raises(DataError, match="val split of digits is empty"):
        dataset.batches("val")
    with pytest.raises(DataError, match="no data set is called 'mnist'"):
        data.load("mnist")


@given(seed=st.integers(0, 1000), flip=st.booleans())
def test_gather_equals_crop_then_flip_image_by_image(seed: int, flip: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (6, 5, 7, 2), dtype=torch.uint8, generator=generator)
    augmentation = Augmentation(pad=2, flip=flip)
    drawn = draw_shifts(6, augmentation, generator)
    assert drawn[2].any() <= flip
    padded = pad_images(images, 2)
    assert padded.shape == (6, 9, 11, 2) and not padded[:, :2].any()
    index = torch.tensor([5, 0, 3, 3, 1, 2])
    result = gather(padded, index, drawn, 5, 7)
    for position, image in enumerate(index):
        top, left, mirrored = drawn[:, position].tolist()
        crop = padded[image, top : top + 5, left : left + 7]
        assert torch.equal(result[position], crop.flip(1) if mirrored else crop)


def _write_image(path: Path, seed: int, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("layout", ["train/test", "train/val", "train/val/test", "flat"])
def test_folder_layouts(tmp_path: Path, layout: str) -> None:
    parts = [""] if layout == "flat" else layout.split("/")
    for part in parts:
        for name in ("cat", "dog"):
            for number in range(5 if part == "val" else 10):
                _write_image(tmp_path / part / name / f"{number}.png", number)
    dataset = data.load(f"folder:{tmp_path}")
    assert dataset.classes == ("cat", "dog") and dataset.input_shape == (3, 20, 20)
    expected = {"train/test": (18, 2, 20), "train/val": (18, 2, 10), "train/val/test": (20, 10, 20)}
    sizes = (len(dataset.train), len(dataset.val), len(dataset.test))
    assert sizes == expected.get(layout, (14, 2, 4))
    images, labels = next(iter(dataset.batches("val", 2)))
    assert images.shape == (2, 3, 20, 20) and labels.dtype == torch.int64


def test_augmented_files_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("a", "b"):
            for number in range(4):
                _write_image(tmp_path / part / name / f"{number}.png", number)
    dataset = data.load(f"folder:{tmp_path}", val=0)
    assert isinstance(dataset.train, data.FileSplit)
    parts = [np.array([5, 0, 3]), np.array([1, 2])]

    def read(key: tuple[int, int] | None, workers: int) -> list[torch.Tensor]:
        return [part for batch in dataset.train.loader(parts, key, workers, torch.device("cpu")) for part in batch]

    one, two, plain = read((1, 0), 0), read((1, 0), 2), read(None, 0)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], plain[0])


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        (tmp_path / part / "a" / "broken.jpg").write_bytes(b"no image")
    dataset = data.load(f"folder:{tmp_path}", val=0)
    with pytest.raises(DataError, match=r"broken\.jpg is not a readable image"):
        next(iter(dataset.batches("train", 1)))


def test_imagenet_is_tested_on_its_validation_images(tmp_path: Path) -> None:
    for part, count in (("train", 10), ("val", 3)):
        for name in ("n01440764", "n01443537"):
            for number in range(count):
                _write_image(tmp_path / part / name / f"{number}.JPEG", number)
    dataset = data.load(f"imagenet:{tmp_path}")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (18, 2, 6)
    assert dataset.classes == ("n01440764", "n01443537") and dataset.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert {path.rsplit("/", 3)[1] for path in dataset.val.paths} == {"train"}, "held out of the training images"
    _write_image(tmp_path / "val" / "n09999999" / "0.JPEG", 0)
    with pytest.raises(DataError, match="classes that train/ lacks: n09999999"):
        data.load(f"imagenet:{tmp_path}")


def test_cub200_in_train_and_test_folders(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("001.Bird_1", "002.Bird_2"):
            for number in range(4):
                _write_image(tmp_path / part / name / f"{number}.jpg", number)
    dataset = data.load(f"cub200:{tmp_path}", val=2)
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (6, 2, 8)
    assert dataset.classes == ("001.Bird_1", "002.Bird_2")


def test_cub200_original_layout(tmp_path: Path) -> None:
    root = tmp_path / "CUB_200_2011"
    names = [f"00{c}.Bird_{c}/Bird_{c}_{i}.jpg" for c in (1, 2) for i in range(5)]
    for number, name in enumerate(names):
        _write_image(root / "images" / name, number)
    lines = {
        "images": names,
        "image_class_labels": [1] * 5 + [2] * 5,
        "train_test_split": [1, 1, 1, 0, 0] * 2,
    }
    for file, values in lines.items():
        (root / f"{file}.txt").write_text("".join(f"{i + 1} {value}\n" for i, value in enumerate(values)))
    dataset = data.load(f"cub200:{tmp_path}", val=0)
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (6, 4, 2)
    assert dataset.classes == ("001.Bird_1", "002.Bird_2")
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    (root / "images" / names[7]).unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 10 images, first 002\.Bird_2/Bird_2_2\.jpg"):
        data.load(f"cub200:{tmp_path}")


@pytest.mark.parametrize(
    ("spec", "looked_for"),
    [("folder:", "train/CLASS"), ("cub200:", "train_test_split.txt"), ("imagenet:", "synset")],
)
def test_missing_folders_say_what_was_looked_for(tmp_path: Path, spec: str, looked_for: str) -> None:
    with pytest.raises(DataError, match=looked_for):
        data.load(f"{spec}{tmp_path / 'absent'}")


def test_factory_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "def make(seed=0):\n"
        "    x = np.random.default_rng(seed).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)\n"
        "    return dict(x_train=x, y_train=np.arange(40) % 4, x_test=x[:8], y_test=np.arange(8) % 4)\n"
        "def wrong(): return 3\n"
    )
    dataset = data.load(f"{file}:make")
    assert dataset.num_classes == 4 and len(dataset.val) == 4 and dataset.input_shape == (1, 8, 8)
    with pytest.raises(DataError, match="gave a int"):
        data.load(f"{file}:wrong")
