"""Images that stay in their files and are decoded as they are needed, by worker processes if asked.

Every image's crop is drawn from (seed, epoch, image), so a run gives the same batches with any number of
workers, and a resumed run goes on where it was.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcprune.errors import DataError, MissingDependencyError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"})


@dataclass(frozen=True)
class TarEntry:
    """An image inside an uncompressed tar: where its bytes are."""

    archive: str
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def content(self) -> io.BytesIO:
        """Its bytes."""
        with open(self.archive, "rb") as file:
            file.seek(self.offset)
            return io.BytesIO(file.read(self.size))


@dataclass(frozen=True, eq=False)
class FileSplit:
    """Image files with labels.

    Attributes:
        paths: the files, or where in a tar they are.
        labels: int64 (N,); -1 where there are none.
        size: height and width of a network input.
        resize: length of the shorter side before the central crop of evaluation.
        bgr: blue comes first.
        bicubic: how images are resized, instead of bilinearly.
    """

    paths: tuple[str | TarEntry, ...]
    labels: Tensor
    size: int = 224
    resize: int = 256
    bgr: bool = False
    bicubic: bool = False

    def __repr__(self) -> str:
        return f"FileSplit({len(self):,} images{f', the first {self.paths[0]}' if self.paths else ''})"

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, indices: np.ndarray | Sequence[int]) -> FileSplit:
        """The images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, paths=tuple(self.paths[i] for i in chosen), labels=self.labels[torch.from_numpy(chosen)])

    def read(self, index: int, generator: np.random.Generator | None = None) -> np.ndarray:
        """One image, uint8 (size, size, 3).

        Args:
            generator: draw a random resized crop and a flip; None takes the central crop.
        """
        image = self._open(index)
        if generator is not None:
            box, mirrored = _random_crop(image.size, generator)
        else:
            width, height = image.size
            side = min(width, height) * self.size / self.resize
            left, top = (width - side) / 2, (height - side) / 2
            box, mirrored = (left, top, left + side, top + side), False
        array = np.asarray(image.resize((self.size, self.size), self._resample, box=box))
        return np.ascontiguousarray(array[:, ::-1]) if mirrored else array

    def read_whole(self, index: int) -> np.ndarray:
        """One image, uint8 (height, width, 3), its shorter side `resize` pixels."""
        image = self._open(index)
        scale = self.resize / min(image.size)
        if scale != 1:
            image = image.resize((round(image.width * scale), round(image.height * scale)), self._resample)
        return np.asarray(image)

    @property
    def _resample(self) -> Any:
        ways = _pillow().Resampling
        return ways.BICUBIC if self.bicubic else ways.BILINEAR

    def _open(self, index: int) -> Any:
        """A Pillow image, its channels in the order that the network takes."""
        path = self.paths[index]
        try:
            with _opened(path) as opened:
                image = opened.convert("RGB")
                return _pillow().merge("RGB", image.split()[::-1]) if self.bgr else image
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} is not a readable image: {error}") from error

    def loader(
        self,
        batches: Sequence[np.ndarray],
        key: tuple[int, int] | None,
        workers: int,
        device: torch.device,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Decode the given batches, in order.

        Args:
            batches: arrays of image indices.
            key: (seed, epoch) of the augmentation; None for central crops.
            workers: processes that decode; 0 decodes in this one.
            device: where the uint8 images and the labels go.
        """
        pinned, workers = device.type == "cuda", min(workers, _cores())
        loader = torch.utils.data.DataLoader(
            _Decoder(self, key),
            batch_sampler=(batch.tolist() for batch in batches),
            num_workers=workers,
            pin_memory=pinned,
            prefetch_factor=4 if workers else None,
        )
        for images, labels in loader:
            yield images.to(device, non_blocking=pinned), labels.to(device, non_blocking=pinned)


class _Decoder(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """What a worker process needs to decode images."""

    def __init__(self, split: FileSplit, key: tuple[int, int] | None) -> None:
        self.split, self.key = split, key

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = None if self.key is None else np.random.default_rng((*self.key, index))
        return torch.tensor(self.split.read(index, generator)), self.split.labels[index]


def _random_crop(size: tuple[int, int], generator: np.random.Generator) -> tuple[tuple[float, ...], bool]:
    """The random resized crop that ImageNet training uses: 8 to 100 % of the area, aspect 3/4 to 4/3."""
    width, height = size
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        aspect = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return (x, y, x + w, y + h), bool(generator.integers(2))
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side), bool(generator.integers(2))


def scan(folder: Path, classes: Sequence[str]) -> FileSplit:
    """The images of `folder/CLASS/` for every class, sorted, with the class's position as label."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(str(path) for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise DataError(f"{folder} holds no images: looked for CLASS/*.jpg, .png, .webp ... in it")
    return FileSplit(tuple(paths), torch.tensor(labels, dtype=torch.int64))


def image_sizes(split: FileSplit) -> list[tuple[int, int]]:
    """(width, height) of some images, from the first to the last; unreadable ones are left out."""
    sizes = []
    for index in np.unique(np.linspace(0, len(split) - 1, 64).astype(int)) if len(split) else ():
        with contextlib.suppress(OSError, SyntaxError, ValueError), _opened(split.paths[index]) as image:
            sizes.append(image.size)
    return sizes


def _opened(path: str | TarEntry) -> Any:
    return _pillow().open(path.content() if isinstance(path, TarEntry) else path)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError("reading images needs Pillow: pip install lcprune[vision]") from None
    return Image


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
