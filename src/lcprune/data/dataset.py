"""A data set: three splits, what it takes to normalise and augment them, and batches of tensors.

Images stay uint8 until they are on the device that computes with them: a quarter of the memory and of the
transfer, and small data sets live on the device as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lcprune.data.arrays import ArraySplit, Augmentation
from lcprune.data.decoded import DecodedSplit, decode
from lcprune.data.files import FileSplit
from lcprune.errors import DataError
from lcprune.score import ACCURACY, LOSS, Score

PARTS = ("train", "val", "test")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")

Split = ArraySplit | DecodedSplit | FileSplit
Part = TypeVar("Part", bound=Sized)


class Parted(Generic[Part]):
    """What every kind of data has: three parts, and what is asked of a network."""

    name: str
    loss_fn: Callable[[Any, Any], Any] | None
    score: Score | None

    def split(self, name: str) -> Part:
        """The part called "train", "val" or "test"."""
        if name not in PARTS:
            raise DataError(f"no split is called {name!r}: expected train, val or test")
        chosen: Part = getattr(self, name)
        if not chosen:
            raise DataError(f"the {name} split of {self.name} is empty")
        return chosen

    @property
    def compared_by(self) -> Score:
        """The score: what was said, the loss that was said, or accuracy."""
        return self.score or (ACCURACY if self.loss_fn is None else LOSS)


@dataclass(frozen=True, eq=False)
class Dataset(Parted[Split]):
    """Train, validation and test images, and how to turn them into network inputs.

    Attributes:
        name: what the user called it.
        num_classes: number of labels.
        input_shape: (channels, height, width) of a network input.
        train: what weights are fitted to.
        val: held out of the training images for every choice that a person or a search makes.
        test: for one last figure.
        mean: per channel, of pixels between 0 and 1.
        std: per channel, likewise.
        augmentation: what training does to images that are in memory.
        classes: names of the labels, where they have some.
        labelled: whether images have labels; batches are images alone if not.
        loss_fn: `loss_fn(output, labels)`, a mean over the batch; None is cross-entropy.
        score: by what networks are compared; None is accuracy, or the loss where one was given.
    """

    name: str
    num_classes: int
    input_shape: tuple[int, int, int]
    train: Split
    val: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    classes: tuple[str, ...] = ()
    labelled: bool = True
    loss_fn: Callable[[Any, Any], Any] | None = None
    score: Score | None = None

    @property
    def classifies(self) -> bool:
        """Whether nothing but the class of an image is asked: hits can be counted while training."""
        return self.loss_fn is None

    def __repr__(self) -> str:
        shape, kind = "x".join(map(str, self.input_shape)), "classes" if self.labelled else "classes, no labels"
        sizes = ", ".join(f"{name} {len(getattr(self, name)):,}" for name in PARTS)
        return f"Dataset({self.name!r}: {sizes} images of {shape}, {self.num_classes} {kind})"

    def decoded(
        self, *, device: str | torch.device = "cpu", threads: int | None = None, progress: bool = False
    ) -> Dataset:
        """The same data set with its image files decoded once, into memory; what is in memory stays as it is.

        Args:
            device: where the pixels go; on a GPU, batches and random crops are made there.
            threads: that decode; None for one per processor.
            progress: show a bar.
        """

        def in_memory(split: Split) -> Split:
            return decode(split, threads, progress).to(device) if isinstance(split, FileSplit) else split

        return replace(self, train=in_memory(self.train), val=in_memory(self.val), test=in_memory(self.test))

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (N, height, width, channels) to normalised float32 (N, channels, height, width).

        The result is laid out channels-last, which costs nothing from here and is what fast kernels want.
        """
        mean = torch.tensor(self.mean, device=images.device).mul(255)
        scale = torch.tensor(self.std, device=images.device).mul(255).reciprocal()
        return images.to(torch.float32).sub_(mean).mul_(scale).permute(0, 3, 1, 2)

    def batches(
        self,
        split: str = "val",
        batch_size: int = 128,
        *,
        limit: int | None = None,
        seed: int | None = None,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> Batches:
        """Batches of (normalised images, labels) that can be iterated again and again; without labels, of images.

        Args:
            split: "train", "val" or "test".
            batch_size: images per batch; the last batch may be smaller.
            limit: use at most so many images.
            seed: draw the images in random order, without replacement; None takes them in the order stored.
            device: where the tensors go.
            workers: processes that decode image files; 0 decodes here.
        """
        if batch_size < 1:
            raise DataError(f"batch_size={batch_size}: expected at least 1")
        if limit is not None and limit < 1:
            raise DataError(f"limit={limit}: expected at least 1 image")
        chosen = self.split(split)
        count = len(chosen)
        order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
        return Batches(self, chosen, order[:limit], batch_size, torch.device(device), workers)


@dataclass(frozen=True, eq=False)
class Batches:
    """Iterable of (images, labels), or of images where there are no labels; see `Dataset.batches`."""

    dataset: Dataset
    split: Split
    order: np.ndarray
    batch_size: int
    device: torch.device
    workers: int

    def __repr__(self) -> str:
        return f"Batches({self.images:,} images in {len(self)} batches of {self.batch_size}, of {self.dataset})"

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    @property
    def images(self) -> int:
        """Images in one pass."""
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self._read():
            inputs = self.dataset.normalise(images.to(self.device, non_blocking=True))
            yield (inputs, labels.to(self.device, non_blocking=True)) if self.dataset.labelled else inputs

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = [self.order[i : i + self.batch_size] for i in range(0, len(self.order), self.batch_size)]
        if isinstance(self.split, FileSplit):
            yield from self.split.loader(parts, None, self.workers, self.device)
        else:
            for index in map(torch.from_numpy, parts):
                yield self.split.central(index), self.split.labels[index]


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
    absent = [key for key in ARRAYS if key not in arrays]
    if absent:
        raise DataError(f"{name} lacks {', '.join(absent)}; it has {', '.join(map(str, arrays))}")
    train, test = (_array_split(name, part, arrays) for part in ("train", "test"))
    if test.images.shape[1:] != train.images.shape[1:]:
        shapes = [tuple(split.images.shape) for split in (train, test)]
        raise DataError(f"{name}: x_train is {shapes[0]} but x_test is {shapes[1]}")
    if mean is None or std is None:
        pixels = train.images.numpy().reshape(-1, train.images.shape[-1]) / 255
        mean = tuple(float(value) for value in pixels.mean(0))
        std = tuple(float(value) for value in np.maximum(pixels.std(0), 1e-3))
    classes = num_classes or 1 + max(int(split.labels.max()) for split in (train, test))
    height, width, channels = train.images.shape[1:]
    shape, nothing = (channels, height, width), train.subset([])
    return Dataset(name, classes, shape, train, nothing, test, mean, std, augmentation or Augmentation())


def _array_split(name: str, part: str, arrays: Mapping[str, Any]) -> ArraySplit:
    images, labels = np.asarray(arrays[f"x_{part}"]), np.asarray(arrays[f"y_{part}"]).reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(
            f"{name}: x_{part} is {images.dtype} {images.shape}, expected uint8 (N, height, width, channels)"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{name}: y_{part} is {labels.dtype}, expected integers")
    if len(images) != len(labels) or not len(images):
        raise DataError(f"{name}: x_{part} has {len(images)} images and y_{part} {len(labels)} labels")
    return ArraySplit(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
