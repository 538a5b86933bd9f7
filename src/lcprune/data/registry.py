"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lcprune.data import cifar, folders, imagenet
from lcprune.data.augment import Augmentation
from lcprune.data.dataset import ArraySplit, Dataset
from lcprune.data.own import OwnData, hold_out_own, own
from lcprune.errors import DataError
from lcprune.models.user_files import call_file, import_file
from lcprune.score import Score

AnyData = Dataset | OwnData

_FOLDERS: dict[str, Callable[[Path], folders.Parts]] = {
    "folder": folders.read_folder,
    "cub200": folders.read_cub200,
}
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
    kind, _, rest = spec.partition(":")
    if spec == "digits":
        dataset = _digits()
    elif spec.rpartition(":")[0].endswith(".py"):
        return _from_file(spec, seed)
    elif kind == "cifar10" and rest:
        arrays = cifar.read(Path(rest).expanduser(), download)
        dataset = from_arrays(spec, arrays, mean=cifar.MEAN, std=cifar.STD, num_classes=10)
        dataset = replace(dataset, classes=cifar.CLASSES)
    elif kind == "imagenet" and rest:
        dataset = imagenet.read(rest)
    elif kind in _FOLDERS and rest:
        train, own_val, test, classes = _FOLDERS[kind](Path(rest).expanduser())
        train, test, validation = folders.fitted(spec, train, test, own_val or train.subset([]))
        dataset = Dataset(
            spec,
            len(classes),
            (3, train.size, train.size),
            train,
            validation,
            test,
            folders.IMAGENET_MEAN,
            folders.IMAGENET_STD,
            classes=classes,
        )
    else:
        raise DataError(
            f"no data set is called {spec!r}: expected digits, cifar10:PATH, folder:PATH, cub200:PATH, "
            "imagenet:PATH or file.py:factory"
        )
    return dataset


def _check_labels(dataset: Dataset) -> None:
    for part in ("train", "val", "test") if dataset.labelled else ():
        labels = getattr(dataset, part).labels
        wrong = ((labels < 0) | (labels >= dataset.num_classes)).nonzero()
        if len(wrong):
            place = int(wrong[0])
            raise DataError(
                f"{dataset.name}: label {int(labels[place])} (image {place} of {part}) is none of the "
                f"{dataset.num_classes} classes, 0 to {dataset.num_classes - 1}: count classes from 0"
            )


def hold_out(dataset: AnyData, seed: int = 0, val: int | float | None = None) -> AnyData:
    """Move part of the training images to the validation split, the same share of every class; `val` as for `load`."""
    if isinstance(dataset, OwnData):
        return hold_out_own(dataset, seed, val)
    total = len(dataset.train)
    if val is None:
        if len(dataset.val):
            return dataset
        val = min(_VAL_FRACTION, 10_000 / total)
    fraction = val if isinstance(val, float) else val / total
    if not 0 <= fraction < 1:
        raise DataError(f"val={val}: expected a fraction below 1, or fewer than the {total} training images")
    labels = dataset.train.labels.numpy()
    rest, part = folders.stratified(labels, fraction, np.random.default_rng(seed))
    if not len(part):
        return dataset
    return replace(dataset, train=dataset.train.subset(rest), val=dataset.train.subset(part))


def from_arrays(
    name: str,
    arrays: Mapping[str, Any],
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    num_classes: int | None = None,
    augmentation: Augmentation | None = None,
) -> Dataset:
    """A data set from uint8 images in memory, without a validation split yet.

    Args:
        name: what to call it.
        arrays: x_train (N, height, width, channels) uint8, y_train (N,), x_test, y_test.
        mean: per channel, of pixels between 0 and 1; None measures the training images.
        std: likewise.
        num_classes: None takes the largest label plus one.
        augmentation: None for pad-4 crops and flips.
    """
    absent = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if absent:
        raise DataError(f"{name} lacks {', '.join(absent)}; it has {', '.join(map(str, arrays))}")
    checked = cifar.check({key: np.asarray(arrays[key]) for key in ("x_train", "y_train", "x_test", "y_test")}, name)
    x_train = checked["x_train"]
    if checked["x_test"].shape[1:] != x_train.shape[1:]:
        raise DataError(f"{name}: x_train is {x_train.shape} but x_test is {checked['x_test'].shape}")
    if mean is None or std is None:
        pixels = x_train.reshape(-1, x_train.shape[-1]) / 255
        mean = tuple(float(value) for value in pixels.mean(0))
        std = tuple(float(value) for value in np.maximum(pixels.std(0), 1e-3))
    splits = [
        ArraySplit(torch.from_numpy(checked[f"x_{part}"]), torch.from_numpy(checked[f"y_{part}"]))
        for part in ("train", "test")
    ]
    classes = num_classes or 1 + max(int(split.labels.max()) for split in splits)
    height, width, channels = x_train.shape[1:]
    return Dataset(
        name,
        classes,
        (channels, height, width),
        splits[0],
        splits[0].subset([]),
        splits[1],
        mean,
        std,
        augmentation or Augmentation(),
    )


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
    arrays = {
        "x_train": images[train],
        "y_train": labels[train],
        "x_test": images[test],
        "y_test": labels[test],
    }
    dataset = from_arrays("digits", arrays, num_classes=10, augmentation=Augmentation(pad=1, flip=False))
    return replace(dataset, classes=tuple("0123456789"))


def _from_file(spec: str, seed: int) -> AnyData:
    made = call_file(spec, {"seed": seed}, DataError)
    if isinstance(made, (Dataset, OwnData)):
        return made
    if isinstance(made, Mapping) and any(key in made for key in ("x_train", "y_train", "x_test", "y_test")):
        return from_arrays(spec, made)
    return own(spec, made)
