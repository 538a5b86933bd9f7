"""Data of any task, as the user has it: arrays, torch data sets, loaders or batches; inputs and targets of any form.

data = own("mine", {"train": (inputs, targets), "test": DataLoader(...)}, loss_fn=mse_loss)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from lcprune.batches import Batch, as_batch, collate, draw, shape_of, to_device
from lcprune.data.dataset import PARTS, Parted
from lcprune.errors import DataError
from lcprune.score import Score

_BATCH = 64  # samples: of arrays and data sets, when they are not trained on


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that can be asked for one by one.

    Attributes:
        source: all of an array's samples as one batch, or a torch data set.
        index: int64 (N,), which of them, in this order.
    """

    source: Any
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def subset(self, indices: Any) -> Samples:
        """The samples at `indices`, in that order."""
        return replace(self, index=self.index[indices])

    def batch(self, indices: Any) -> Batch:
        """Some samples as a batch."""
        chosen = self.index[indices]
        if isinstance(self.source, Batch):
            return Batch(*self.source.at(torch.from_numpy(chosen)), len(chosen))
        return collate([_sample(self.source[int(place)]) for place in chosen], len(chosen))[0]

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All of them."""
        return (self.batch(slice(start, start + batch_size)) for start in range(0, len(self), batch_size))


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches as a user's loader gives them, again and again."""

    source: Iterable[Any]

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return next(self.batches(), None) is not None

    @cached_property
    def _count(self) -> int:
        sampler = getattr(self.source, "sampler", None)
        if isinstance(self.source, DataLoader) and hasattr(sampler, "__len__") and not self.source.drop_last:
            return len(sampler)  # type: ignore[arg-type]
        return sum(batch.size for batch in self.batches())

    @cached_property
    def steps(self) -> int:
        """Batches of one pass."""
        return len(self.source) if isinstance(self.source, Sized) else sum(1 for _ in self.source)

    def batches(self, batch_size: int = 0) -> Iterator[Batch]:
        """All of them, whatever size they have."""
        return map(as_batch, self.source)


@dataclass(frozen=True, eq=False)
class OwnData(Parted[Samples | Stream]):
    """Train, validation and test parts of any task.

    Attributes:
        name: what the user called it.
        train: what weights are fitted to.
        val: for every choice that a person or a search makes.
        test: for one last figure.
        loss_fn: `loss_fn(output, target)`, a mean over the batch; None is cross-entropy.
        score: by what networks are compared; None is the loss, or accuracy where that is cross-entropy.
    """

    name: str
    train: Samples | Stream
    val: Samples | Stream
    test: Samples | Stream
    loss_fn: Callable[[Any, Any], Any] | None = None
    score: Score | None = None
    num_classes: None = None

    @cached_property
    def first(self) -> Batch:
        """A few samples."""
        for batch in chain.from_iterable(part.batches(2) for part in (self.train, self.val, self.test)):
            return Batch(*batch.at(slice(2)), min(2, batch.size))
        raise DataError(f"{self.name} holds no samples; a generator is used up when it was read: give a list")

    @property
    def labelled(self) -> bool:
        """Whether samples have targets."""
        return not (isinstance(self.first.target, tuple) and self.first.target == ())

    @property
    def classifies(self) -> bool:
        """Whether every sample has a class and nothing else is asked: hits can be counted while training."""
        target = self.first.target
        return self.loss_fn is None and isinstance(target, torch.Tensor) and target.ndim == 1

    @property
    def input_shape(self) -> Any:
        """Of a network input; see `batches/inputs.py`."""
        return shape_of(self.first.inputs)

    def batches(
        self,
        split: str = "val",
        batch_size: int = _BATCH,
        *,
        limit: int | None = None,
        seed: int | None = None,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> OwnBatches:
        """Batches that can be iterated again and again; those of a user's loader have the size that it gives them.

        Args:
            split: "train", "val" or "test".
            batch_size: most samples of a batch that is made here.
            limit: use at most so many samples.
            seed: draw them in random order, without replacement; None takes them in the order stored.
            device: where the tensors go.
            workers: not used; a loader has its own.
        """
        chosen = self.split(split)
        size, where = min(batch_size, _BATCH), torch.device(device)
        if seed is None:
            return OwnBatches(lambda: _few(chosen.batches(size), limit), where)
        rng = np.random.default_rng(seed)
        if isinstance(chosen, Samples):
            drawn = chosen.subset(rng.permutation(len(chosen))[:limit])
            return OwnBatches(lambda: drawn.batches(size), where)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # a loader may shuffle
            samples = draw(chosen.source, limit or len(chosen), seed)
        order = rng.permutation(len(samples))
        return OwnBatches(lambda: iter(collate([samples[place] for place in order], size)), where)


class OwnBatches:
    """Batches on a device, again and again."""

    def __init__(self, make: Callable[[], Iterator[Batch]], device: torch.device) -> None:
        self._make, self._device = make, device

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._make():
            yield Batch(to_device(batch.inputs, self._device), to_device(batch.target, self._device), batch.size)


def own(name: str, parts: Any, loss_fn: Any = None, score: Any = None) -> OwnData:
    """Data of any task.

    Args:
        name: what to call it.
        parts: a mapping, or an object, with `train` and perhaps `val`, `test`, `loss` and `score`. Each part is a pair
            (inputs, targets) with one entry per sample, a torch data set of (input, target), a `DataLoader`, or another
            iterable of (input, target) batches. Inputs are a tensor, a tuple of them, or a dict of keyword arguments.
            Without targets, a part is a tensor, or gives inputs alone.
        loss_fn: `loss_fn(output, target)`, a mean over the batch; None is that of `parts`, or cross-entropy.
        score: by what networks are compared: a `Score`, or a function `(output, target)`; None is that of `parts`.

    Raises:
        DataError: a part is none of these.
    """
    found = (
        parts if isinstance(parts, Mapping) else {key: getattr(parts, key, None) for key in (*PARTS, "loss", "score")}
    )
    strange = [str(key) for key in found if key not in (*PARTS, "loss", "score")]
    if strange or not any(found.get(key) is not None for key in PARTS):
        said = f"has {', '.join(map(str, found))}" if isinstance(parts, Mapping) else f"gave a {type(parts).__name__}"
        raise DataError(f"{name} {said}: expected train, val, test, loss and score, or x_train, y_train ...")
    loss_fn, score = loss_fn or found.get("loss"), score or found.get("score")
    train, val, test = (_part(found.get(key), f"{name}: {key}") for key in PARTS)
    return OwnData(name, train, val, test, loss_fn, None if score is None else Score.of(score))


def _part(given: Any, name: str) -> Samples | Stream:
    if given is None:
        return Samples(Batch((), (), 0), np.arange(0))
    if isinstance(given, (tuple, torch.Tensor, np.ndarray, dict)):
        whole = as_batch(given if not isinstance(given, np.ndarray) else torch.as_tensor(given))
        return Samples(whole, np.arange(whole.size))
    if isinstance(given, IterableDataset):
        raise DataError(f"{name} gives single samples: make batches of them with DataLoader(..., batch_size=64)")
    if isinstance(given, TorchDataset) and hasattr(given, "__len__"):
        return Samples(given, np.arange(len(given)))
    if isinstance(given, Iterator) or not hasattr(given, "__iter__"):
        what = "can be read only once" if isinstance(given, Iterator) else "is no data"
        raise DataError(
            f"{name} is a {type(given).__name__}, which {what}: give a pair (inputs, targets), a torch data set, a "
            "DataLoader or a list of batches"
        )
    return Stream(given)


def _sample(given: Any) -> tuple[Any, Any]:
    if isinstance(given, (torch.Tensor, np.ndarray, Mapping)):
        return given, ()
    if len(given) != 2:
        raise DataError(f"a data set must give (input, target) or an input alone, not {len(given)} things")
    return given[0], given[1]


def _few(batches: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """Batches up to so many samples."""
    left = limit
    for batch in batches:
        if left is not None:
            if batch.size >= left:
                yield Batch(*batch.at(slice(left)), left)
                return
            left -= batch.size
        yield batch
