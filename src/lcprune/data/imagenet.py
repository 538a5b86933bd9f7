"""ImageNet, whole or in part: its folders, a folder of some images, or tars of them.

    imagenet:PATH                      as torchvision's networks take them
    imagenet:PATH,input=caffe          blue, green, red; minus means, not scaled
    imagenet:PATH,input=lite,size=240  as EfficientNet-Lite1 takes them

A network that is trained needs no training set to be pruned: two of five images serve search and repair, three judge.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lcprune.data.dataset import Dataset
from lcprune.data.files import SUFFIXES, FileSplit, TarEntry, scan
from lcprune.data.folders import IMAGENET_MEAN, IMAGENET_STD, class_names
from lcprune.errors import DataError

Parts = tuple[FileSplit, FileSplit, tuple[str, ...]]  # train, test, class names

_CLASSES = 1000
_NUMBERS = tuple(map(str, range(_CLASSES)))
_CROPPED_AWAY = 32  # pixels: shorter side 256 for inputs of 224, 272 for 240


@dataclass(frozen=True)
class Convention:
    """How inputs are made of pixels: `mean` and `std` in the order of the channels, the rest as in a `FileSplit`."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    bgr: bool = False
    bicubic: bool = False


CONVENTIONS: Mapping[str, Convention] = {
    "torchvision": Convention(),
    "caffe": Convention((103.939 / 255, 116.779 / 255, 123.68 / 255), (1 / 255,) * 3, bgr=True),
    "lite": Convention((127 / 255,) * 3, (128 / 255,) * 3, bicubic=True),
}


def read(given: str) -> Dataset:
    """ImageNet, without a validation split yet.

    Args:
        given: a path, and options after commas. `input` is one of `CONVENTIONS`, `size` the height and width of an
            input (224), `resize` the shorter side before the central crop (`size` + 32, of packed images `size`).
            The path is one of:

            - `train/SYNSET/` and `val/SYNSET/`; the validation images are the test, as is usual.
            - `CLASS/`, named by the synsets or by their numbers, 0 to 999, then in part if need be.
            - Images alone, without labels: all of them serve search and repair, and no accuracy is known.
            - Tars, or one tar, of images that are cropped already, `K/CLASS.webp`: image K of class number CLASS.
    """
    path, options = _split_options(given)
    convention = CONVENTIONS[options.get("input", "torchvision")]
    train, test, classes = _parts(path)
    size = int(options.get("size", 224))
    usual = size if train.paths and isinstance(train.paths[0], TarEntry) else size + _CROPPED_AWAY
    resize = int(options.get("resize", usual))
    if not 1 <= size <= resize:
        raise DataError(f"imagenet:{given}: size={size} and resize={resize}: an input cannot be larger than its image")
    how: dict[str, Any] = {"size": size, "resize": resize, "bgr": convention.bgr, "bicubic": convention.bicubic}
    train, test = replace(train, **how), replace(test, **how)
    return Dataset(
        f"imagenet:{given}",
        num_classes=len(classes) or _CLASSES,
        input_shape=(3, size, size),
        train=train,
        val=train.subset([]),
        test=test,
        mean=convention.mean,
        std=convention.std,
        classes=classes,
        labelled=bool(classes),
    )


def _split_options(given: str) -> tuple[Path, dict[str, str]]:
    matched = re.fullmatch(r"(.*?)((?:,\w+=\w*)*)", given, re.DOTALL)
    assert matched is not None
    options = dict(part.split("=", 1) for part in matched[2].split(",")[1:])
    for key, value in options.items():
        if key not in ("input", "size", "resize"):
            raise DataError(f"imagenet:{given}: {key} is no option; there are input, size and resize")
        if key == "input" and value not in CONVENTIONS:
            raise DataError(f"imagenet:{given}: input={value}: expected one of {', '.join(CONVENTIONS)}")
        if key != "input" and not value.isdecimal():
            raise DataError(f"imagenet:{given}: {key}={value}: expected a number of pixels")
    return Path(matched[1]).expanduser(), options


def _parts(path: Path) -> Parts:
    if (path / "train").is_dir() and (path / "val").is_dir():
        classes = class_names(path / "train")
        stray = set(class_names(path / "val")) - set(classes)
        if stray:
            raise DataError(f"{path / 'val'} has classes that train/ lacks: {', '.join(sorted(stray)[:5])}")
        return scan(path / "train", classes), scan(path / "val", classes), classes
    tars = [path] if path.is_file() else sorted(path.glob("*.tar"))
    if tars:
        return _two_of_five(_packed(tars), _NUMBERS)
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    if names:
        return _some_classes(path, names)
    images = sorted(str(entry) for entry in path.glob("*") if entry.suffix.lower() in SUFFIXES)
    if not images:
        raise DataError(
            f"no ImageNet at {path}: looked for train/ and val/ with one folder per synset, for one folder per class, "
            "for images (without labels), and for tars of K/CLASS.webp"
        )
    everything = FileSplit(tuple(images), torch.full((len(images),), -1))
    return everything, everything.subset([]), ()


def _some_classes(path: Path, names: list[str]) -> Parts:
    if all(name.isdecimal() and int(name) < _CLASSES for name in names):
        found = scan(path, names)
        numbers = torch.tensor([int(name) for name in names])[found.labels]
        order = torch.argsort(numbers, stable=True)
        return _two_of_five(replace(found, labels=numbers).subset(order.numpy()), _NUMBERS)
    if len(names) != _CLASSES:
        raise DataError(
            f"{path} has {len(names)} folders, {names[0]} ...: a network's classes are known if there are "
            f"{_CLASSES}, one per synset, or if each is named by its number, 0 to {_CLASSES - 1}; "
            "images without labels lie in one folder"
        )
    return _two_of_five(scan(path, names), tuple(names))


def _packed(tars: list[Path]) -> FileSplit:
    found: list[tuple[int, TarEntry]] = []
    for file in tars:
        try:
            with tarfile.open(file, "r:") as archive:
                entries = [entry for entry in archive if Path(entry.name).suffix.lower() in SUFFIXES and entry.isfile()]
        except (OSError, tarfile.TarError) as error:
            raise DataError(f"{file} is not a readable tar (it must not be compressed): {error}") from error
        for entry in entries:
            label = Path(entry.name).stem
            if not (label.isdecimal() and int(label) < _CLASSES):
                raise DataError(f"{file} holds {entry.name}: expected K/CLASS.webp, CLASS a number below {_CLASSES}")
            found.append((int(label), TarEntry(str(file), entry.name, entry.offset_data, entry.size)))
    if not found:
        raise DataError(f"{tars[0]} holds no images: expected K/CLASS.webp")
    found.sort(key=lambda pair: (pair[0], pair[1].name))
    return FileSplit(tuple(member for _, member in found), torch.tensor([label for label, _ in found]))


def _two_of_five(everything: FileSplit, classes: tuple[str, ...]) -> Parts:
    """The first two of five images, in order of classes, to search and repair with; the other three to judge by."""
    first = np.arange(len(everything)) % 5 < 2
    return everything.subset(np.flatnonzero(first)), everything.subset(np.flatnonzero(~first)), classes
