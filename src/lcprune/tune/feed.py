"""Where training batches come from.

Images that fit live on the device as uint8, already padded; an epoch is then two small tables (which image,
which crop) and a cursor, all on the device, so that a step needs nothing from the host; image files that were
decoded into memory likewise. Other image files come through a DataLoader into two fixed buffers. All are functions
of (seed, epoch) alone: an interrupted epoch can be taken up at any step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, to_device
from lcprune.data import AnyData, ArraySplit, Augmentation, Dataset, DecodedSplit, FileSplit, OwnData
from lcprune.data.arrays import draw_shifts, gather, pad_images
from lcprune.data.decoded import draw_crops, middle, sample
from lcprune.data.own import Samples
from lcprune.errors import TuneError


class Feed(ABC):
    """Batches of one training run.

    Attributes:
        steps: per epoch.
        batch: images per step on this process.
        cursor: int64 (1,) on the device, the step within the epoch; whoever steps moves it on.
        capturable: a step can be captured as a CUDA graph: its batch is always of the same size, at the same place.
    """

    steps: int
    batch: int
    capturable = True

    def __init__(self, seed: int, device: torch.device, share: tuple[int, int]) -> None:
        self.seed, self.device = seed, device
        self.rank, self.world = share
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)

    def part(self, count: int, batch_size: int) -> None:
        """Make steps of so many samples; those of the last, partial step wait an epoch."""
        if batch_size % self.world:
            raise TuneError(f"batch_size={batch_size} cannot be shared evenly by {self.world} processes")
        batch = min(batch_size, count // self.world * self.world)
        if batch < self.world:
            raise TuneError(f"{count} training images are too few for {self.world} processes")
        self.count, self.steps, self.batch = count, count // batch, batch // self.world

    def start(self, epoch: int, step: int) -> None:
        """Prepare an epoch from the given step on."""
        self.cursor.fill_(step)

    def advance(self) -> None:  # noqa: B027 - not all leave something to the host
        """Host work before a step; not part of a captured graph."""

    @abstractmethod
    def fetch(self) -> tuple[Any, Any]:
        """Inputs and targets of the step that the cursor points to; device work only."""

    def mine(self, order: Any) -> Any:
        """(..., steps, batch): this process's part of what an epoch takes, in its order (..., samples)."""
        used = order[..., : self.steps * self.world * self.batch]
        return used.reshape(*used.shape[:-1], self.steps, self.world, self.batch)[..., self.rank, :]

    def shuffled(self, epoch: int, step: int) -> Iterator[np.ndarray]:
        """Which samples this process takes at each step of an epoch, from the given one on."""
        return iter(self.mine(np.random.default_rng((self.seed, epoch)).permutation(self.count))[step:])


def _normaliser(dataset: Dataset, device: torch.device) -> Callable[[Tensor], Tensor]:
    """(B, H, W, C), 0 to 255, to float (B, C, H, W) with constants that are on the device already."""
    shift = torch.tensor(dataset.mean, device=device).mul(-255)
    scale = torch.tensor(dataset.std, device=device).mul(255).reciprocal()
    return lambda images: images.to(torch.float32).add_(shift).mul_(scale).permute(0, 3, 1, 2)


# (numbers, images): what is drawn for images in their order; the images (batch, height, width, channels) of a step.
_Draw = Callable[[Tensor, torch.Generator], Tensor]
_Crop = Callable[[Tensor, Tensor], Tensor]


class ResidentFeed(Feed):
    """Images that are all on the device; which ones a step takes, and how they are cropped, are tables there.

    Args:
        seeds: one, or one per member of a fleet, whose batches follow one another.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        augment: bool,
        seeds: Sequence[int],
        device: torch.device,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(seeds[0], device, share)
        self.part(len(dataset.train), batch_size)
        self.seeds = seeds
        ways = _arrays if isinstance(dataset.train, ArraySplit) else _decoded
        self.draw, self.crop = ways(dataset, augment, device)
        self.labels = dataset.train.labels.to(device)
        self.normalise = _normaliser(dataset, device)
        self.order = self.drawn = torch.empty(0)

    def _tables(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Which images, (steps, batches), and which crops, (numbers, steps, batches), the seeds give to an epoch."""
        orders, draws = [], []
        for seed in self.seeds:
            generator = torch.Generator().manual_seed(mix(seed, epoch))
            order = torch.randperm(self.count, generator=generator)[: self.steps * self.world * self.batch]
            orders.append(self.mine(order))
            draws.append(self.mine(self.draw(order, generator)))
        return torch.cat(orders, dim=-1), torch.cat(draws, dim=-1)

    def start(self, epoch: int, step: int) -> None:
        super().start(epoch, step)
        order, drawn = self._tables(epoch)
        if not len(self.order):
            self.order, self.drawn = [torch.empty_like(table, device=self.device) for table in (order, drawn)]
        self.order.copy_(order)  # to where a captured step reads it
        self.drawn.copy_(drawn)

    def fetch(self) -> tuple[Tensor, Tensor]:
        index = self.order.index_select(0, self.cursor).view(-1)
        drawn = self.drawn.index_select(1, self.cursor).view(len(self.drawn), -1)
        return self.normalise(self.crop(index, drawn)), self.labels.index_select(0, index)


def _arrays(dataset: Dataset, augment: bool, device: torch.device) -> tuple[_Draw, _Crop]:
    assert isinstance(dataset.train, ArraySplit)
    augmentation = dataset.augmentation if augment else Augmentation(pad=0, flip=False)
    height, width = dataset.train.images.shape[1:3]
    padded = pad_images(dataset.train.images.to(device), augmentation.pad)
    return (
        lambda order, generator: draw_shifts(len(order), augmentation, generator),
        lambda index, drawn: gather(padded, index, drawn, height, width),
    )


def _decoded(dataset: Dataset, augment: bool, device: torch.device) -> tuple[_Draw, _Crop]:
    split = dataset.train
    assert isinstance(split, DecodedSplit)
    pixels, places = split.pixels.to(device), split.places.to(device)

    def drawn(order: Tensor, generator: torch.Generator) -> Tensor:
        some = split.places[:, order]
        return draw_crops(some, generator) if augment else middle(some, split.size)

    return drawn, lambda index, crops: sample(pixels, places.index_select(1, index), crops, split.size)


class FileFeed(Feed):
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
        super().__init__(seed, device, share)
        self.part(len(dataset.train), batch_size)
        self.split, self.augment, self.workers = dataset.train, augment, workers
        channels, height, width = dataset.input_shape
        self.images = torch.zeros(self.batch, height, width, channels, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(self.batch, dtype=torch.int64, device=device)
        self.normalise = _normaliser(dataset, device)
        self.incoming: Iterator[tuple[Tensor, Tensor]] = iter(())

    def start(self, epoch: int, step: int) -> None:
        super().start(epoch, step)
        key = (self.seed, epoch) if self.augment else None
        self.incoming = self.split.loader(list(self.shuffled(epoch, step)), key, self.workers, self.device)

    def advance(self) -> None:
        images, labels = next(self.incoming)
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def fetch(self) -> tuple[Tensor, Tensor]:
        return self.normalise(self.images), self.labels


class OwnFeed(Feed):
    """Batches of any task. A user's own loader is iterated with its random numbers seeded by (seed, epoch)."""

    capturable = False

    def __init__(
        self, dataset: OwnData, batch_size: int, seed: int, device: torch.device, share: tuple[int, int]
    ) -> None:
        super().__init__(seed, device, share)
        self.source = dataset.train
        if isinstance(self.source, Samples):
            self.part(len(self.source), batch_size)
        else:
            self.steps, self.batch = self.source.steps, next(self.source.batches()).size // self.world
        self.incoming: Iterator[Batch] = iter(())
        self.current: Batch | None = None

    def start(self, epoch: int, step: int) -> None:
        super().start(epoch, step)
        if isinstance(self.source, Samples):
            self.incoming = map(self.source.batch, self.shuffled(epoch, step))
        else:
            torch.manual_seed(mix(self.seed, epoch))
            self.incoming = map(self._share, islice(self.source.batches(), step, None))

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
    """The feed of a data set's training split; `share` is (rank, number of processes) that part each batch."""
    if not dataset.train:
        raise TuneError(f"{dataset.name} has no training images")
    if isinstance(dataset, OwnData):
        return OwnFeed(dataset, batch_size, seed, device, share)
    if isinstance(dataset.train, FileSplit):
        return FileFeed(dataset, batch_size, augment, seed, device, share, workers)
    return ResidentFeed(dataset, batch_size, augment, [seed], device, share)


def mix(*numbers: int) -> int:
    """One seed out of several numbers, so that nearby ones give unrelated streams."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
