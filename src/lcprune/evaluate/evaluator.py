"""The loss of a selection: two ways to compute it, one contract, the physically pruned network's loss."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, call, loss_of
from lcprune.copies import copy_to_run
from lcprune.errors import first_line
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

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
        self.work = Work()
        self._known: dict[bytes, float] = {}

    def loss(self, kept: Kept | Mapping[str, NDArray[np.int64]]) -> float:
        """Mean loss of the network that keeps these units; inf if it is not finite.

        `kept` has the sorted units of each group, in the order of `graph.groups`; or by name, missing groups whole.
        """
        if isinstance(kept, Mapping):
            kept = [np.asarray(kept.get(group.name, np.arange(group.size))) for group in self.graph.groups]
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
        return self.loss({})

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

    def _key(self, kept: Kept) -> bytes:
        return np.packbits(self._mask(kept)).tobytes()

    def _mask(self, kept: Kept) -> NDArray[np.bool_]:
        """One flag per unit of the network, groups one after another."""
        flags = [np.zeros(0, dtype=np.bool_)]
        for group, units in zip(self.graph.groups, kept, strict=True):
            flags.append(np.zeros(group.size, dtype=np.bool_))
            flags[-1][np.asarray(units, dtype=np.int64)] = True
        return np.concatenate(flags)

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

    def widen(output: torch.Tensor) -> torch.Tensor:
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output

    return pytree.tree_map_only(torch.Tensor, widen, call(model, batch.inputs))


def some_of(batch: Batch, count: int, start: int = 0) -> Batch:
    """So many images of a batch, or all there are from `start` on, without their targets."""
    part = slice(start, start + count)
    return Batch(pytree.tree_map(lambda leaf: leaf[part], batch.inputs), (), min(count, batch.size - start))


def runs(model: nn.Module, batch: Batch, channels_last: bool = False, bf16: bool = False) -> bool:
    """Whether a copy of the network runs on two images in another memory layout or precision.

    Not every network does: `x.view(...)` refuses channels-last activations, and numbers that a network makes for itself
    in float32 do not go with bf16 weights.
    """
    few, model = some_of(batch, 2), copy_to_run(model)
    try:
        if channels_last:  # 3-D convolutions have no such layout
            few = few.channels_last()
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if bf16:
            few = few.bfloat16()
            model.to(torch.bfloat16)
        with torch.inference_mode():
            call(model, few.inputs)
    except Exception as error:
        logger.info("not %s: %s", "in bf16" if bf16 else "channels last", first_line(error))
        return False
    return True
