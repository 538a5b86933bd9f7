"""The loss of a selection: two ways to compute it, one contract, the physically pruned network's loss."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, call, loss_of
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

LossFn = Callable[[Any, Any], torch.Tensor]


@dataclass
class Work:
    """What an evaluator has done, counted.

    Attributes:
        evaluations: selections whose loss was computed.
        hits: selections answered from memory.
        captures: CUDA graphs captured.
        sliced: evaluations that built a smaller network.
        preparing: seconds spent building, cutting, folding and writing weights.
        evaluating: seconds spent in forward passes and losses.
    """

    evaluations: int = 0
    hits: int = 0
    captures: int = 0
    sliced: int = 0
    preparing: float = 0.0
    evaluating: float = 0.0


class Evaluator(ABC):
    """Computes losses of selections on fixed batches; equal selections are computed once.

    Args:
        graph: of the network to be pruned.
        batches: the images, on the network's device.
        loss_fn: `loss_fn(output, target)`, a mean over the batch.

    Attributes:
        precision: of the losses; those that are not "fp32" only rank.
    """

    precision = "fp32"

    def __init__(self, graph: ChannelGraph, batches: Sequence[Batch], loss_fn: LossFn) -> None:
        self.graph, self.batches, self.loss_fn = graph, list(batches), loss_fn
        self.images = sum(batch.size for batch in self.batches)
        self.work = Work()
        self._known: dict[bytes, float] = {}

    def loss(self, kept: Kept | Mapping[str, NDArray[np.int64]]) -> float:
        """Mean loss of the network that keeps these units.

        Args:
            kept: sorted kept units of each group, in the order of `graph.groups`; or by name, missing groups
                whole.

        Returns:
            The loss; inf if it is not finite.
        """
        kept = self._in_order(kept)
        key = self._key(kept)
        if key in self._known:
            self.work.hits += 1
            return self._known[key]
        self.work.evaluations += 1
        value = self.compute(kept)
        self._known[key] = value if math.isfinite(value) else math.inf
        return self._known[key]

    def full_loss(self) -> float:
        """Loss of the network before pruning."""
        return self.loss([np.arange(group.size) for group in self.graph.groups])

    def knows(self, kept: Kept) -> bool:
        """Whether an equal selection has been computed."""
        return self._key(kept) in self._known

    def remember(self, kept: Kept, loss: float) -> None:
        """Take a loss from an earlier run as computed."""
        self._known.setdefault(self._key(kept), loss)

    def exactly(self) -> Evaluator:
        """An evaluator of a handful of selections, in float32, where this one only ranks."""
        return self

    @abstractmethod
    def compute(self, kept: Kept) -> float:
        """The loss, whether it was computed before or not."""

    def is_whole(self, kept: Kept) -> bool:
        """Whether a selection removes nothing: then it is judged as the network is, whatever candidates get before."""
        return all(len(units) == group.size for units, group in zip(kept, self.graph.groups, strict=True))

    def _in_order(self, kept: Kept | Mapping[str, NDArray[np.int64]]) -> Kept:
        if isinstance(kept, Mapping):
            return [np.asarray(kept.get(group.name, np.arange(group.size))) for group in self.graph.groups]
        return kept

    def _key(self, kept: Kept) -> bytes:
        return np.packbits(self._mask(kept)).tobytes()

    def _mask(self, kept: Kept) -> NDArray[np.bool_]:
        """One flag per unit of the network, groups one after another."""
        sizes = [group.size for group in self.graph.groups]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        mask = np.zeros(int(starts[-1]), dtype=np.bool_)
        for start, units in zip(starts[:-1], kept, strict=True):
            mask[start + np.asarray(units, dtype=np.int64)] = True
        return mask

    def _timed(self, part: str, started: float) -> float:
        now = time.perf_counter()
        setattr(self.work, part, getattr(self.work, part) + now - started)
        return now


def mean_loss(model: Callable[..., Any], batches: Sequence[Batch], loss_fn: LossFn) -> torch.Tensor:
    """Mean of `loss_fn` over all images, as a float64 scalar on their device: no wait for the device."""
    images = sum(batch.size for batch in batches)
    total: Any = 0.0
    for batch in batches:
        total = total + loss_of(loss_fn, output_of(model, batch), batch.target).double() * (batch.size / images)
    return torch.as_tensor(total)


def output_of(model: Callable[..., Any], batch: Batch) -> Any:
    """What a network gives for a batch, in no less than float32."""
    return pytree.tree_map_only(torch.Tensor, _at_least_float32, call(model, batch.inputs))


def _at_least_float32(output: torch.Tensor) -> torch.Tensor:
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
