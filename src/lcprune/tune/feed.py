"""Where training batches come from.

Images that fit live on the device as uint8, already padded; an epoch is then two small tables (which image,
which crop) and a cursor, all on the device, so that a step needs nothing from the host; image files that were
decoded into memory likewise. Other image files come through a DataLoader into two fixed buffers. All are functions
of (seed, epoch) alone: an interrupted epoch can be taken up at any step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, to_device
from lcprune.data import AnyData, ArraySplit, Augmentation, Dataset, DecodedSplit, FileSplit, OwnData
from lcprune.data.arrays import draw, gather, pad_images
from lcprune.data.decoded import draw_crops, middle, sample
from lcprune.data.own import Samples
from lcprune.errors import TuneError


class Feed(Protocol):
    """Batches of one training run.

    Attributes:
        steps: per epoch.
        batch: images per step on this process.
        cursor: int64 (1,) on the device, the step within the epoch; whoever steps moves it on.
        capturable: a step can be captured as a CUDA graph: its batch is always of the same size, at the same place.
    """

    steps: int
    batch: int
    cursor: Tensor
    capturable: bool

    def start(self, epoch: int, step: int) -> None:
        """Prepare an epoch from the given step on."""

    def advance(self) -> None:
        """Host work before a step; not part of a captured graph."""

    def fetch(self) -> tuple[Any, Any]:
        """Inputs and targets of the step that the cursor points to; device work only."""


class _Normaliser:
    """uint8 (B, H, W, C) to float (B, C, H, W) with constants that are on the device already."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.shift = torch.tensor(dataset.mean, device=device).mul(-255)
        self.scale = torch.tensor(dataset.std, device=device).mul(255).reciprocal()

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).add_(self.shift).mul_(self.scale).permute(0, 3, 1, 2)


class _OnDevice(ABC):
    """Images that are all on the device; which ones a step takes, and how they are cropped, are tables there."""

    capturable = True

    def __init__(
        self, dataset: Dataset, batch_size: int, seed: int, device: torch.device, share: tuple[int, int], drawn: Tensor
    ) -> None:
        self.rank, self.world = share
        self.count, self.seed = len(dataset.train), seed
        self.steps, self.batch = _partition(self.count, batch_size, self.world)
        self.labels = dataset.train.labels.to(device)
        self.normalise = _Normaliser(dataset, device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.zeros(self.steps, self.batch, dtype=torch.int64, device=device)
        self.drawn = drawn.new_zeros(len(drawn), self.steps, self.batch, device=device)

    @abstractmethod
    def draw(self, order: Tensor, generator: torch.Generator) -> Tensor:
        """(numbers, images): what is drawn for images in their order."""

    @abstractmethod
    def crop(self, index: Tensor, drawn: Tensor) -> Tensor:
        """The images of a step, (batch, height, width, channels)."""

    def tables(self, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Which images, (steps, batch), and which crops, (numbers, steps, batch), a seed gives to an epoch."""
        generator = torch.Generator().manual_seed(mix(seed, epoch))
        shape = (self.steps, self.world, self.batch)
        order = torch.randperm(self.count, generator=generator)[: self.steps * self.world * self.batch]
        drawn = self.draw(order, generator)
        return order.view(shape)[:, self.rank], drawn.view(-1, *shape)[:, :, self.rank]

    def start(self, epoch: int, step: int) -> None:
        order, drawn = self.tables(self.seed, epoch)
        self.order.copy_(order)
        self.drawn.copy_(drawn)
        self.cursor.fill_(step)

    def advance(self) -> None:  # noqa: B027 - nothing is left to the host
        pass

    def fetch(self) -> tuple[Tensor, Tensor]:
        index = self.order.index_select(0, self.cursor).view(-1)
        drawn = self.drawn.index_select(1, self.cursor).view(len(self.drawn), -1)
        return self.normalise(self.crop(index, drawn)), self.labels.index_select(0, index)


class ResidentFeed(_OnDevice):
    """Images of one size."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seed: int,
        device: torch.device,
        share: tuple[int, int],
    ) -> None:
        assert isinstance(dataset.train, ArraySplit)
        super().__init__(dataset, batch_size, seed, device, share, torch.zeros(3, dtype=torch.int64))
        self.augmentation = dataset.augmentation if augment else Augmentation(pad=0, flip=False)
        self.height, self.width = dataset.train.images.shape[1:3]
        self.padded = pad_images(dataset.train.images.to(device), self.augmentation.pad)

    def draw(self, order: Tensor, generator: torch.Generator) -> Tensor:
        return draw(len(order), self.augmentation, generator)

    def crop(self, index: Tensor, drawn: Tensor) -> Tensor:
        return gather(self.padded, index, drawn, self.height, self.width)


class DecodedFeed(_OnDevice):
    """Image files that were decoded before."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seed: int,
        device: torch.device,
        share: tuple[int, int],
    ) -> None:
        assert isinstance(dataset.train, DecodedSplit)
        super().__init__(dataset, batch_size, seed, device, share, torch.zeros(5))
        self.split, self.augment = dataset.train, augment
        self.pixels, self.places = self.split.pixels.to(device), self.split.places.to(device)

    def draw(self, order: Tensor, generator: torch.Generator) -> Tensor:
        places = self.split.places[:, order]
        return draw_crops(places, generator) if self.augment else middle(places, self.split.size)

    def crop(self, index: Tensor, drawn: Tensor) -> Tensor:
        return sample(self.pixels, self.places.index_select(1, index), drawn, self.split.size)


class FileFeed:
    """Images that are decoded by worker processes into fixed device buffers."""

    capturable = True

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seed: int,
        device: torch.device,
        share: tuple[int, int],
        workers: int,
    ) -> None:
        assert isinstance(dataset.train, FileSplit)
        self.split = dataset.train
        self.rank, self.world = share
        self.steps, self.batch = _partition(len(self.split), batch_size, self.world)
        self.augment, self.seed, self.device, self.workers = augment, seed, device, workers
        channels, height, width = dataset.input_shape
        self.images = torch.zeros(self.batch, height, width, channels, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(self.batch, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.normalise = _Normaliser(dataset, device)
        self.incoming: Iterator[tuple[Tensor, Tensor]] = iter(())

    def start(self, epoch: int, step: int) -> None:
        used = self.steps * self.world * self.batch
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.split))[:used]
        mine = order.reshape(self.steps, self.world, self.batch)[step:, self.rank]
        key = (self.seed, epoch) if self.augment else None
        self.incoming = self.split.loader(list(mine), key, self.workers, self.device)
        self.cursor.fill_(step)

    def advance(self) -> None:
        images, labels = next(self.incoming)
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def fetch(self) -> tuple[Tensor, Tensor]:
        return self.normalise(self.images), self.labels


class OwnFeed:
    """Batches of any task. A user's own loader is iterated with its random numbers seeded by (seed, epoch)."""

    capturable = False

    def __init__(
        self, dataset: OwnData, batch_size: int, seed: int, device: torch.device, share: tuple[int, int]
    ) -> None:
        self.part, self.seed, self.device = dataset.train, seed, device
        self.rank, self.world = share
        if isinstance(self.part, Samples):
            self.steps, self.batch = _partition(len(self.part), batch_size, self.world)
        else:
            self.steps, self.batch = self.part.steps, next(self.part.batches()).size // self.world
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.incoming: Iterator[Batch] = iter(())
        self.current: Batch | None = None

    def start(self, epoch: int, step: int) -> None:
        if isinstance(self.part, Samples):
            used = self.steps * self.world * self.batch
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.part))[:used]
            mine = order.reshape(self.steps, self.world, self.batch)[step:, self.rank]
            self.incoming = map(self.part.batch, mine)
        else:
            torch.manual_seed(mix(self.seed, epoch))
            self.incoming = map(self._share, islice(self.part.batches(), step, None))
        self.cursor.fill_(step)

    def _share(self, batch: Batch) -> Batch:
        """This process's samples of a batch."""
        size = batch.size // self.world
        if not size:
            raise TuneError(f"a batch of {batch.size} samples is too small for {self.world} processes")
        mine = slice(self.rank * size, (self.rank + 1) * size)
        inputs, target = pytree.tree_map(lambda leaf: leaf[mine], tuple(batch))
        return Batch(inputs, target, size)

    def advance(self) -> None:
        self.current = next(self.incoming, None)
        if self.current is None:
            raise TuneError(f"the training batches ended before step {self.steps}: they must be as many in every epoch")

    def fetch(self) -> tuple[Any, Any]:
        assert self.current is not None
        return to_device(self.current.inputs, self.device), to_device(self.current.target, self.device)


def make_feed(
    dataset: AnyData,
    batch_size: int,
    augment: bool,
    seed: int,
    device: torch.device,
    share: tuple[int, int] = (0, 1),
    workers: int = 4,
) -> Feed:
    """The feed that suits the data set.

    Args:
        dataset: its training split is fed.
        batch_size: over all processes.
        share: (rank, number of processes); every process gets its part of each batch.
        workers: that decode image files.
    """
    if not dataset.train:
        raise TuneError(f"{dataset.name} has no training images")
    if isinstance(dataset, OwnData):
        return OwnFeed(dataset, batch_size, seed, device, share)
    if isinstance(dataset.train, ArraySplit):
        return ResidentFeed(dataset, batch_size, augment, seed, device, share)
    if isinstance(dataset.train, DecodedSplit):
        return DecodedFeed(dataset, batch_size, augment, seed, device, share)
    return FileFeed(dataset, batch_size, augment, seed, device, share, workers)


def mix(*numbers: int) -> int:
    """One seed out of several numbers, so that nearby ones give unrelated streams."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _partition(count: int, batch_size: int, world: int) -> tuple[int, int]:
    """(steps per epoch, images per step and process); the images of the last, partial step wait an epoch."""
    if batch_size % world:
        raise TuneError(f"batch_size={batch_size} cannot be shared evenly by {world} processes")
    batch = min(batch_size, count // world * world)
    if batch < world:
        raise TuneError(f"{count} training images are too few for {world} processes")
    return count // batch, batch // world
