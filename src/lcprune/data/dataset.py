"""A data set: three splits, what it takes to normalise and augment them, and batches of tensors.

Images stay uint8 until they are on the device that computes with them: a quarter of the memory and of the
transfer, and small data sets live on the device as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcprune.data.augment import Augmentation
from lcprune.data.decoded import DecodedSplit, decode
from lcprune.data.files import FileSplit
from lcprune.errors import DataError
from lcprune.score import Score, Scored


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Images in memory.

    Attributes:
        images: uint8 (N, height, width, channels).
        labels: int64 (N,).
    """

    images: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        return f"ArraySplit({len(self):,} images of {'x'.join(map(str, self.images.shape[1:]))})"

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: np.ndarray | Sequence[int]) -> ArraySplit:
        """The images at `indices`, in that order."""
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return ArraySplit(self.images[chosen], self.labels[chosen])


Split = ArraySplit | DecodedSplit | FileSplit


@dataclass(frozen=True, eq=False)
class Dataset(Scored):
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
        sizes = ", ".join(f"{name} {len(getattr(self, name)):,}" for name in ("train", "val", "test"))
        return f"Dataset({self.name!r}: {sizes} images of {shape}, {self.num_classes} {kind})"

    def split(self, name: str) -> Split:
        """The split called "train", "val" or "test"."""
        if name not in ("train", "val", "test"):
            raise DataError(f"no split is called {name!r}: expected train, val or test")
        chosen: Split = getattr(self, name)
        if not len(chosen):
            raise DataError(f"the {name} split of {self.name} is empty")
        return chosen

    def decoded(
        self, *, device: str | torch.device = "cpu", threads: int | None = None, progress: bool = False
    ) -> Dataset:
        """The same data set with its image files decoded once, into memory; what is in memory stays as it is.

        Args:
            device: where the pixels go; on a GPU, batches and random crops are made there.
            threads: that decode; None for one per processor.
            progress: show a bar.
        """
        parts: dict[str, Split] = {}
        for name in ("train", "val", "test"):
            split: Split = getattr(self, name)
            if isinstance(split, FileSplit):
                parts[name] = decode(split, threads, progress).to(device)
        return replace(self, **parts)  # type: ignore[arg-type]

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
        chosen = self.split(split)
        count = len(chosen) if limit is None else min(limit, len(chosen))
        if count < 1:
            raise DataError(f"limit={limit}: expected at least 1 image")
        if seed is None:
            order = np.arange(count)
        else:
            order = np.random.default_rng(seed).permutation(len(chosen))[:count]
        return Batches(self, chosen, order, batch_size, torch.device(device), workers)


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
        return self._pairs() if self.dataset.labelled else (images for images, _ in self._pairs())

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = [self.order[i : i + self.batch_size] for i in range(0, len(self.order), self.batch_size)]
        if isinstance(self.split, FileSplit):
            for images, labels in self.split.loader(parts, None, self.workers, self.device):
                yield self.dataset.normalise(images), labels
            return
        for part in parts:
            index = torch.from_numpy(part)
            images = self.split.central(index) if isinstance(self.split, DecodedSplit) else self.split.images[index]
            labels = self.split.labels[index].to(self.device, non_blocking=True)
            yield self.dataset.normalise(images.to(self.device, non_blocking=True)), labels
