"""Where training batches come from.

Images that fit live on the device as uint8, already padded; an epoch is then two small tables (which image,
which crop) and a cursor, all on the device, so that a step needs nothing from the host; image files that were
decoded into memory likewise. Other image files come through a DataLoader into two fixed buffers. All are functions
of (seed, epoch) alone: an interrupted epoch can be taken up at any step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lcprune.data import ArraySplit, Augmentation, Dataset, DecodedSplit, FileSplit
from lcprune.data.augment import draw, gather, pad_images
from lcprune.data.decoded import draw_crops, middle, sample
from lcprune.errors import TuneError


class Feed(Protocol):
    """Batches of one training run.

    Attributes:
        steps: per epoch.
        batch: images per step on this process.
        cursor: int64 (1,) on the device, the step within the epoch; whoever steps moves it on.
    """

    steps: int
    batch: int
    cursor: Tensor

    def start(self, epoch: int, step: int) -> None:
        """Prepare an epoch from the given step on."""

    def advance(self) -> None:
        """Host work before a step; not part of a captured graph."""

    def fetch(self) -> tuple[Tensor, Tensor]:
        """Normalised images and labels of the step that the cursor points to; device work only."""


class _Normaliser:
    """uint8 (B, H, W, C) to float (B, C, H, W) with constants that are on the device already."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.shift = torch.tensor(dataset.mean, device=device).mul(-255)
        self.scale = torch.tensor(dataset.std, device=device).mul(255).reciprocal()

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).add_(self.shift).mul_(self.scale).permute(0, 3, 1, 2)


class ResidentFeed:
    """Images that live on the device."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seed: int,
        device: torch.device,
        share: tuple[int, int],
    ) -> None:
        split = dataset.train
        assert isinstance(split, ArraySplit)
        self.rank, self.world = share
        self.steps, self.batch = _partition(len(split), batch_size, self.world)
        self.count, self.seed = len(split), seed
        self.augmentation = dataset.augmentation if augment else Augmentation(pad=0, flip=False)
        self.height, self.width = split.images.shape[1:3]
        self.padded = pad_images(split.images.to(device), self.augmentation.pad)
        self.labels = split.labels.to(device)
        self.normalise = _Normaliser(dataset, device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.zeros(self.steps, self.batch, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(3, self.steps, self.batch, dtype=torch.int64, device=device)

    def start(self, epoch: int, step: int) -> None:
        order, drawn = self.tables(self.seed, epoch)
        self.order.copy_(order)
        self.drawn.copy_(drawn)
        self.cursor.fill_(step)

    def tables(self, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Which images, (steps, batch), and which crops, (3, steps, batch), a seed gives to an epoch."""
        generator = torch.Generator().manual_seed(mix(seed, epoch))
        shape = (self.steps, self.world, self.batch)
        used = self.steps * self.world * self.batch
        order = torch.randperm(self.count, generator=generator)[:used].view(shape)
        drawn = draw(used, self.augmentation, generator).view(3, *shape)
        return order[:, self.rank], drawn[:, :, self.rank]

    def advance(self) -> None:
        pass

    def fetch(self) -> tuple[Tensor, Tensor]:
        index = self.order.index_select(0, self.cursor).view(-1)
        drawn = self.drawn.index_select(1, self.cursor).view(3, -1)
        images = gather(self.padded, index, drawn, self.height, self.width)
        return self.normalise(images), self.labels.index_select(0, index)


class DecodedFeed:
    """Image files that were decoded before, their pixels on the device."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seed: int,
        device: torch.device,
        share: tuple[int, int],
    ) -> None:
        split = dataset.train
        assert isinstance(split, DecodedSplit)
        self.split, self.augment, self.seed = split, augment, seed
        self.rank, self.world = share
        self.steps, self.batch = _partition(len(split), batch_size, self.world)
        self.pixels = split.pixels.to(device)
        self.labels = split.labels.to(device)
        self.places = split.places.to(device)
        self.normalise = _Normaliser(dataset, device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.zeros(self.steps, self.batch, dtype=torch.int64, device=device)
        self.crops = torch.zeros(5, self.steps, self.batch, device=device)

    def start(self, epoch: int, step: int) -> None:
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        shape = (self.steps, self.world, self.batch)
        order = torch.randperm(len(self.split), generator=generator)[: self.steps * self.world * self.batch]
        places = self.split.places[:, order]
        crops = draw_crops(places, generator) if self.augment else middle(places, self.split.size)
        self.order.copy_(order.view(shape)[:, self.rank])
        self.crops.copy_(crops.view(5, *shape)[:, :, self.rank])
        self.cursor.fill_(step)

    def advance(self) -> None:
        pass

    def fetch(self) -> tuple[Tensor, Tensor]:
        index = self.order.index_select(0, self.cursor).view(-1)
        crops = self.crops.index_select(1, self.cursor).view(5, -1)
        images = sample(self.pixels, self.places.index_select(1, index), crops, self.split.size)
        return self.normalise(images), self.labels.index_select(0, index)


class FileFeed:
    """Images that are decoded by worker processes into fixed device buffers."""

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


def make_feed(
    dataset: Dataset,
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
        augment: crop and flip.
        seed: of order and augmentation.
        device: where batches are made.
        share: (rank, number of processes); every process gets its part of each batch.
        workers: that decode image files.
    """
    if not len(dataset.train):
        raise TuneError(f"{dataset.name} has no training images")
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
