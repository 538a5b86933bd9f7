"""Data sets by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcprune.data import cifar, folders, imagenet
from lcprune.data.arrays import Augmentation
from lcprune.data.dataset import ARRAYS, PARTS, Dataset, from_arrays
from lcprune.data.own import OwnData, Samples, Stream, own
from lcprune.errors import DataError
from lcprune.models.user_files import call_file, import_file
from lcprune.score import Score

AnyData = Dataset | OwnData

_FOLDERS = {"folder": folders.folder_parts, "cub200": folders.cub200_parts}
_VAL_FRACTION = 0.1


def load(
    spec: str,
    seed: int = 0,
    *,
    val: int | float | None = None,
    download: bool = False,
    loss: str | None = None,
    score: str | None = None,
) -> AnyData:
    """A data set by name.

    Args:
        spec: `digits`, `cifar10:PATH`, `folder:PATH`, `cub200:PATH`, `imagenet:PATH` or `file.py:factory`.
            ImageNet also takes options and parts of it: `imagenet:PATH,input=caffe` (see `docs/imagenet.md`).
            The factory gives train, val and test parts of any task (see `own`), a mapping with uint8 images x_train
            (N, height, width, channels), labels y_train, and x_test, y_test, or a `Dataset`.
        seed: draws the validation split. The test split never depends on it.
        val: held out of the training images: a number of images (int) or a fraction (float); 0 for none. By
            default a tenth (at most 10,000 images), or the data set's own validation split if it has one.
        download: fetch CIFAR-10 through torchvision where it is missing.
        loss: `file.py:function` that gives the mean loss of (output, target); None is the data's own, or cross-entropy.
        score: `file.py:name` of what networks are compared by, a function or a `lcprune.Score`.
    """
    dataset = _named(spec, seed, download)
    if isinstance(dataset, Dataset):
        _check_labels(dataset)
    dataset = hold_out(dataset, seed, val)
    if loss is not None:
        dataset = replace(dataset, loss_fn=import_file(loss, DataError)[1])
    if score is not None:
        dataset = replace(dataset, score=Score.of(import_file(score, DataError)[1]))
    return dataset


def _named(spec: str, seed: int, download: bool) -> AnyData:
    if spec == "digits":
        return _digits()
    if spec.rpartition(":")[0].endswith(".py"):
        return _from_file(spec, seed)
    kind, _, rest = spec.partition(":")
    path = Path(rest).expanduser()
    if kind == "cifar10" and rest:
        dataset = from_arrays(spec, cifar.read(path, download), mean=cifar.MEAN, std=cifar.STD, num_classes=10)
        return replace(dataset, classes=cifar.CLASSES)
    if kind == "imagenet" and rest:
        return imagenet.read(rest)
    if kind in _FOLDERS and rest:
        return folders.read(spec, _FOLDERS[kind], path)
    raise DataError(
        f"no data set is called {spec!r}: expected digits, cifar10:PATH, folder:PATH, cub200:PATH, "
        "imagenet:PATH or file.py:factory"
    )


def _from_file(spec: str, seed: int) -> AnyData:
    made = call_file(spec, {"seed": seed}, DataError)
    if isinstance(made, (Dataset, OwnData)):
        return made
    if isinstance(made, Mapping) and any(key in made for key in ARRAYS):
        return from_arrays(spec, made)
    return own(spec, made)


def _check_labels(dataset: Dataset) -> None:
    for part in PARTS if dataset.labelled else ():
        labels = getattr(dataset, part).labels
        wrong = ((labels < 0) | (labels >= dataset.num_classes)).nonzero()
        if len(wrong):
            place = int(wrong[0])
            raise DataError(
                f"{dataset.name}: label {int(labels[place])} (image {place} of {part}) is none of the "
                f"{dataset.num_classes} classes, 0 to {dataset.num_classes - 1}: count classes from 0"
            )


def hold_out(dataset: AnyData, seed: int = 0, val: int | float | None = None) -> AnyData:
    """Move part of the training samples to the validation split; `val` as for `load`.

    Of images it is the same share of every class. The batches of a user's loader cannot be parted and stay whole.
    """
    train = dataset.train
    if val is None and (dataset.val or isinstance(train, Stream)):
        return dataset
    if isinstance(train, Stream):
        raise DataError(f"val={val}: the batches of a loader cannot be parted; let {dataset.name} give its own val")
    total = len(train)
    if val is None:
        val = _VAL_FRACTION if isinstance(train, Samples) else min(_VAL_FRACTION, 10_000 / total)
    count = round(val * total) if isinstance(val, float) else val
    if val < 0 or count >= max(total, 1):
        raise DataError(f"val={val}: expected a fraction below 1, or fewer than the {total} training samples")
    if not count:
        return dataset
    generator = np.random.default_rng(seed)
    if isinstance(train, Samples):
        order = generator.permutation(total)
        rest, part = np.sort(order[count:]), np.sort(order[:count])
    else:
        rest, part = folders.stratified(train.labels.numpy(), count / total, generator)
    return replace(dataset, train=train.subset(rest), val=train.subset(part))  # type: ignore[arg-type]


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """1,797 handwritten digits: small enough to come with lcprune, real enough to learn from.

    The test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning
    Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), in the order of scikit-learn's `load_digits`
    (BSD-3-Clause), which results on record were made with.

    Returns:
        Images (1797, 8, 8), each pixel from 0 to 16, and their labels (1797,).
    """
    with resources.files("lcprune.data").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return stored["images"], stored["labels"].astype(np.int64)


def _digits() -> Dataset:
    pixels, labels = digits()
    images = (pixels * (255 / 16)).round().astype(np.uint8)[..., None]
    train, test = folders.stratified(labels, 0.2, np.random.default_rng(0))
    arrays = dict(zip(ARRAYS, (images[train], labels[train], images[test], labels[test]), strict=True))
    dataset = from_arrays("digits", arrays, num_classes=10, augmentation=Augmentation(pad=1, flip=False))
    return replace(dataset, classes=tuple("0123456789"))
