"""Data sets of image files: ImageFolder layouts, CUB-200."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lcprune.data.dataset import Dataset
from lcprune.data.files import FileSplit, image_sizes, scan
from lcprune.errors import DataError

logger = logging.getLogger("lcprune")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Parts = tuple[FileSplit, FileSplit, FileSplit, tuple[str, ...]]  # train, val (perhaps empty), test, class names


def read(name: str, parts: Callable[[Path], Parts], path: Path) -> Dataset:
    """A data set of image files; `parts` is `folder_parts` or `cub200_parts`.

    Inputs have the size of the images where those are small and all alike; else the usual 224 pixels.
    """
    train, val, test, classes = parts(path)
    size, sizes = train.size, image_sizes(train)
    sides = sorted(min(width, height) for width, height in sizes)
    if sides and sides[0] < size:
        if len(set(sizes)) == 1:
            size = sides[0]
            logger.info("%s: inputs of %dx%d, as the images are", name, size, size)
            train, val, test = (replace(split, size=size, resize=size) for split in (train, val, test))
        else:
            logger.warning(
                "%s has images of %d to %d pixels: they are scaled to inputs of %dx%d, with the MACs of these; images "
                "of one size are taken as they are",
                *(name, sides[0], sides[-1], size, size),
            )
    shape = (3, size, size)
    return Dataset(name, len(classes), shape, train, val, test, IMAGENET_MEAN, IMAGENET_STD, classes=classes)


def folder_parts(path: Path) -> Parts:
    """Folders of images, one per class.

    `path` holds `train/CLASS/` and `test/CLASS/` or `val/CLASS/`; with all three, val is the validation split. Without
    `train/`, the classes lie directly in it and a fifth of each class is the test.
    """
    if not path.is_dir():
        raise DataError(f"no folder at {path}: looked for train/CLASS/*.jpg and test/ or val/, or CLASS/*.jpg")
    if not (path / "train").is_dir():
        classes = class_names(path)
        everything = scan(path, classes)
        # The test part must be the same for every seed, so it has a generator of its own.
        rest, part = stratified(everything.labels.numpy(), 0.2, np.random.default_rng(0))
        return everything.subset(rest), everything.subset([]), everything.subset(part), classes
    classes = class_names(path / "train")
    train = scan(path / "train", classes)
    held = [scan(path / name, classes) for name in ("val", "test") if (path / name).is_dir()]
    if not held:
        raise DataError(f"{path} has train/ but neither test/ nor val/")
    return train, held[0] if len(held) == 2 else train.subset([]), held[-1], classes


def cub200_parts(path: Path) -> Parts:
    """CUB-200: the original layout (images.txt, train_test_split.txt ...), or train/ and test/ folders."""
    root = path / "CUB_200_2011" if (path / "CUB_200_2011").is_dir() else path
    if (root / "train").is_dir():
        return folder_parts(root)
    tables = {name: root / f"{name}.txt" for name in ("images", "image_class_labels", "train_test_split")}
    absent = [str(file) for file in tables.values() if not file.is_file()]
    if absent:
        raise DataError(f"no CUB-200 at {path}: looked for train/ and test/, and for {', '.join(absent)}")
    names = _table(tables["images"])
    label_of = {key: int(value) - 1 for key, value in _table(tables["image_class_labels"]).items()}
    in_train = {key: value == "1" for key, value in _table(tables["train_test_split"]).items()}
    if not names.keys() == label_of.keys() == in_train.keys():
        raise DataError(f"{root}: images.txt, image_class_labels.txt and train_test_split.txt list different images")
    keys = list(names)
    gone = [key for key in keys if not (root / "images" / names[key]).is_file()]
    if gone:
        raise DataError(f"{root / 'images'} lacks {len(gone)} of {len(keys)} images, first {names[gone[0]]}")
    splits = []
    for train in (True, False):
        chosen = [key for key in keys if in_train[key] is train]
        paths = tuple(str(root / "images" / names[key]) for key in chosen)
        splits.append(FileSplit(paths, torch.tensor([label_of[key] for key in chosen], dtype=torch.int64)))
    folder_of = {label_of[key]: Path(names[key]).parent.name for key in keys}
    classes = tuple(folder_of.get(label, str(label)) for label in range(max(folder_of) + 1))
    return splits[0], splits[0].subset([]), splits[1], classes


def _table(file: Path) -> dict[str, str]:
    rows = [line.split(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    damaged = next((row for row in rows if len(row) != 2), None)
    if damaged is not None or not rows:
        raise DataError(f"{file}: expected lines of two columns, found {damaged}")
    return {key: value.strip() for key, value in rows}


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders in a folder, sorted."""
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not classes:
        raise DataError(f"{folder} has no class folders in it")
    return classes


def stratified(labels: np.ndarray, fraction: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Part `fraction` of every class of `labels` (N,) from the rest: sorted indices of the rest, and of the part.

    The total is rounded, so that it is exact over all classes.
    """
    shuffled = generator.permutation(len(labels))
    # Order by class, shuffled within: every 1/fraction-th element is then a stratified sample.
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = round(len(labels) * fraction)
    picked = by_class[((np.arange(count) + 0.5) * len(labels) / max(count, 1)).astype(np.int64)]
    mask = np.zeros(len(labels), dtype=bool)
    mask[picked] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
