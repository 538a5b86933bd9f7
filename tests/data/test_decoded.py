"""Image files decoded once give the batches that the files give, and crops that Pillow would make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lcprune import data, models, tune
from lcprune.data.decoded import draw_crops, middle, sample
from lcprune.data.files import FileSplit, _random_crop

SHAPES = [(40, 40), (40, 61), (70, 40), (40, 44), (51, 40), (40, 40)]


@pytest.fixture
def files(tmp_path: Path) -> data.Dataset:
    """Two classes of images, most with a shorter side of 40 pixels; networks see 32."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for label in ("a", "b"):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for number, shape in enumerate([*SHAPES, (30, 90)]):
                smooth = Image.fromarray(rng.integers(256, size=(5, 6, 3), dtype=np.uint8))
                smooth.resize(shape[::-1], Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    made = data.load(f"folder:{tmp_path}", val=0)
    splits = {name: replace(getattr(made, name), size=32, resize=40) for name in ("train", "val", "test")}
    return replace(made, input_shape=(3, 32, 32), **splits)


def test_batches_are_those_of_the_files(files: data.Dataset) -> None:
    decoded = files.decoded(threads=2)
    for split in ("train", "test"):
        ours = torch.cat([images for images, _ in decoded.batches(split, 5)])
        theirs = torch.cat([images for images, _ in files.batches(split, 5)])
        labels = [torch.cat([y for _, y in each.batches(split, 5)]) for each in (decoded, files)]
        assert torch.equal(*labels) and ours.shape == (14, 3, 32, 32)
        exact = [n for n in range(14) if n % 7 < 6 and not sum(SHAPES[n % 7]) % 2]  # no half pixels, no scaling
        assert torch.equal(ours[exact], theirs[exact])
        assert (ours - theirs).abs().mean() < 0.02
    chosen = decoded.train.subset([3, 1])
    assert isinstance(chosen, data.DecodedSplit)
    assert torch.equal(chosen.central(torch.tensor([1])), decoded.train.central(torch.tensor([1])))  # type: ignore[union-attr]


def test_crops_are_those_of_pillow(files: data.Dataset) -> None:
    split = files.decoded().train
    assert isinstance(split, data.DecodedSplit) and isinstance(files.train, FileSplit)
    index = torch.arange(6)
    crops = draw_crops(split.places[:, index], torch.Generator().manual_seed(3))
    crops[2:4] = crops[2:4].clamp(max=32)  # where Pillow shrinks an image, it blurs it first
    found = sample(split.pixels, split.places[:, index], crops, 32)
    for number, (left, top, width, height, mirrored) in enumerate(crops.T.tolist()):
        with Image.open(files.train.paths[number]) as image:
            box = (left, top, left + width, top + height)
            wanted = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=box)).astype(np.float32)
        wanted = wanted[:, ::-1] if mirrored else wanted
        assert np.abs(found[number].numpy() - wanted).max() <= 1  # Pillow rounds, twice
    assert 0 < crops[4].sum() < 6, "some are mirrored, some are not"


def test_crops_lie_inside_and_cover_what_is_asked() -> None:
    heights, widths = torch.full((4000,), 40), torch.full((4000,), 60)
    places = torch.stack([torch.zeros_like(heights), heights, widths])
    left, top, width, height, _ = draw_crops(places, torch.Generator().manual_seed(0))
    assert (left >= 0).all() and (left + width <= 60).all() and (top >= 0).all() and (top + height <= 40).all()
    share = width * height / 2400
    rng = np.random.default_rng(0)
    boxes = np.array([_random_crop((60, 40), rng)[0] for _ in range(4000)])  # what image files get
    theirs = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 2400
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(share, quantile) == pytest.approx(np.quantile(theirs, quantile), abs=0.03)
    assert float(left.mean()) == pytest.approx(boxes[:, 0].mean(), abs=0.7)
    assert (width / height).min() > 0.6 and (width / height).max() < 1.6
    assert left.max() > 40 and top.max() > 20
    # A strip that no crop fits into gives its middle.
    strip = torch.stack([torch.zeros(9, dtype=torch.int64), torch.full((9,), 4), torch.full((9,), 4000)])
    left, top, width, height, _ = draw_crops(strip, torch.Generator().manual_seed(0))
    assert ((width == 4) & (height == 4) & (top == 0) & (left == 1998)).any()


def test_training_reads_decoded_images(files: data.Dataset, tmp_path: Path) -> None:
    decoded = files.decoded()
    split = decoded.train
    assert isinstance(split, data.DecodedSplit)
    plain = tune.feed.make_feed(decoded, 14, False, 0, torch.device("cpu"))
    plain.start(0, 0)
    images, labels = plain.fetch()
    order = plain.order[0]  # type: ignore[attr-defined]
    assert torch.allclose(images, decoded.normalise(split.central(order)), atol=1e-5)
    assert torch.equal(labels, split.labels[order])
    assert torch.equal(middle(split.places, 32)[2], torch.full((14,), 32.0))
    feed = tune.feed.make_feed(decoded, 4, True, 0, torch.device("cpu"))
    shown = []
    for epoch in (0, 1, 0):
        feed.start(epoch, 1)
        shown.append(feed.fetch()[0])
    assert torch.equal(shown[0], shown[2]) and not torch.equal(shown[0], shown[1])

    torch.manual_seed(0)
    model = models.build("resnet20", num_classes=2)
    recipe = tune.recipe("finetune", epochs=2, batch_size=7)
    result = tune.fit(model, decoded, recipe, run_dir=tmp_path / "run", progress=False, device="cpu")
    assert result.finished and len(result.history) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_same_batches(files: data.Dataset) -> None:
    here, there = files.decoded(), files.decoded(device="cuda")
    batches = [list(each.batches("train", 5, seed=1)) for each in (here, there)]
    for ours, theirs in zip(*batches, strict=True):
        torch.testing.assert_close(ours[0], theirs[0].cpu(), rtol=0, atol=1e-3)
    feeds = [tune.feed.make_feed(each, 7, True, 0, each.train.pixels.device) for each in (here, there)]  # type: ignore[union-attr]
    for feed in feeds:
        feed.start(2, 1)
    torch.testing.assert_close(feeds[0].fetch()[0], feeds[1].fetch()[0].cpu(), rtol=0, atol=1e-3)
    model = models.build("resnet20", num_classes=2)
    recipe = tune.recipe("finetune", epochs=2, batch_size=7)  # the step is captured
    assert tune.fit(model, there, recipe, progress=False, device="cuda").finished
