"""Data sets of image files: ImageFolder layouts, CUB-200."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lcprune.data.files import FileSplit, image_sizes, scan
from lcprune.errors import DataError

logger = logging.getLogger("lcprune")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Parts = tuple[FileSplit, FileSplit | None, FileSplit, tuple[str, ...]]


def read_folder(path: Path) -> Parts:
    """Folders of images, one per class.

    Args:
        path: holds `train/CLASS/` and `test/CLASS/` or `val/CLASS/`; with all three, val is the validation
            split. Without `train/`, the classes lie directly in it and a fifth of each class is the test.

    Returns:
        (train, val or None, test, class names).
    """
    if not path.is_dir():
        raise DataError(f"no folder at {path}: looked for train/CLASS/*.jpg and test/ or val/, or CLASS/*.jpg")
    if not (path / "train").is_dir():
        return _one_folder(path)
    classes = class_names(path / "train")
    train = _split(path / "train", classes)
    has_val, has_test = (path / "val").is_dir(), (path / "test").is_dir()
    if not (has_val or has_test):
        raise DataError(f"{path} has train/ but neither test/ nor val/")
    test = _split(path / ("test" if has_test else "val"), classes)
    val = _split(path / "val", classes) if has_val and has_test else None
    return train, val, test, classes


def fitted(name: str, *splits: FileSplit) -> tuple[FileSplit, ...]:
    """Splits whose inputs have the size of the images, where those are small and all alike; else the usual 224 pixels.

    Args:
        name: of the data set, for messages.
        splits: the first is looked at.
    """
    sizes = image_sizes(splits[0])
    sides = sorted({min(size) for size in sizes})
    if not sides or sides[0] >= splits[0].size:
        return splits
    if len(set(sizes)) == 1:
        side = sides[0]
        logger.info("%s: inputs of %dx%d, as the images are", name, side, side)
        return tuple(replace(split, size=side, resize=side) for split in splits)
    logger.warning(
        "%s has images of %d to %d pixels: they are scaled to inputs of %dx%d, with the MACs of these; images of one "
        "size are taken as they are",
        *(name, sides[0], sides[-1], splits[0].size, splits[0].size),
    )
    return splits


def read_cub200(path: Path) -> Parts:
    """CUB-200: the original layout (images.txt, train_test_split.txt ...), or train/ and test/ folders."""
    root = path / "CUB_200_2011" if (path / "CUB_200_2011").is_dir() else path
    if (root / "train").is_dir():
        return read_folder(root)
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
    return splits[0], None, splits[1], classes


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


def _split(folder: Path, classes: tuple[str, ...]) -> FileSplit:
    return FileSplit(*scan(folder, classes))


def _one_folder(path: Path) -> Parts:
    classes = class_names(path)
    everything = _split(path, classes)
    # The test part must be the same for every seed, so it has a generator of its own.
    train, test = stratified(everything.labels.numpy(), 0.2, np.random.default_rng(0))
    return everything.subset(train), None, everything.subset(test), classes


def stratified(labels: np.ndarray, fraction: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Part `fraction` of every class from the rest.

    Args:
        labels: int (N,).
        fraction: between 0 and 1; the total is rounded, so that it is exact over all classes.

    Returns:
        Sorted indices of the rest, and of the part.
    """
    shuffled = generator.permutation(len(labels))
    # Order by class, shuffled within: every 1/fraction-th element is then a stratified sample.
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = round(len(labels) * fraction)
    picked = by_class[((np.arange(count) + 0.5) * len(labels) / max(count, 1)).astype(np.int64)]
    mask = np.zeros(len(labels), dtype=bool)
    mask[picked] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
