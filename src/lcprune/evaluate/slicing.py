"""Judging physically smaller networks: on a CPU fewer multiply-adds are fewer seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from lcprune.evaluate.draw import Batch
from lcprune.evaluate.evaluator import Evaluator, Kept, LossFn, arithmetic, mean_loss
from lcprune.evaluate.fold import checked_pairs, fold_

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

Prepare = Callable[[nn.Module, Sequence[Batch]], None]


class SlicingEvaluator(Evaluator):
    """Cuts each candidate out of the network, folds its batch norms and runs it.

    Args:
        graph: of the network.
        batches: the images.
        loss_fn: of an output and a target.
        prepare: changes each candidate, in place, before it is judged.
        fold: whether to fold batch norm; off, the candidate runs as it is.
        channels_last: memory layout of images and weights.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        batches: Sequence[Batch],
        loss_fn: LossFn,
        prepare: Prepare | None = None,
        fold: bool = True,
        channels_last: bool = False,
    ) -> None:
        super().__init__(graph, batches, loss_fn)
        started = time.perf_counter()
        self.channels_last = channels_last
        if channels_last:
            self.batches = [batch.channels_last() for batch in self.batches]
        self.prepare = prepare
        self.pairs = checked_pairs(graph.model, self.batches[0].inputs) if fold else []
        self._timed("preparing", started)

    def _compute(self, kept: Kept) -> float:
        self.work.sliced += 1
        started = time.perf_counter()
        model = self.graph.plan(list(kept)).apply(self.graph.model).eval()
        if self.prepare is not None:
            self.prepare(model, self.batches)
            model.eval()
        with arithmetic(), torch.inference_mode():
            fold_(model, self.pairs)
            if self.channels_last:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            started = self._timed("preparing", started)
            value = float(mean_loss(model, self.batches, self.loss_fn))
        self._timed("evaluating", started)
        return value
