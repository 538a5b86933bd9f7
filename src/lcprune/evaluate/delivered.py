"""Judging a few selections as what a user would get: after the whole repair, too long for every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lcprune.batches import arithmetic, collate
from lcprune.copies import copy_to_run
from lcprune.evaluate.evaluation import Evaluation
from lcprune.evaluate.evaluator import mean_loss
from lcprune.evaluate.prepare import parted
from lcprune.repairs import mend
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

_BATCH = 128


class Delivered:
    """Losses of cut networks after `repair="auto"`, fitted and judged by the images that serve a search for each.

    Args:
        graph: of the network.
        samples: drawn images.
        how: the evaluation.
        classes: whether outputs are scores of classes.
        seed: of the repair.

    Attributes:
        full_loss: of the network itself.
    """

    def __init__(
        self, graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, classes: bool, seed: int
    ) -> None:
        self._graph, self._how, self._classes, self._seed = graph, how, classes, seed
        self._fitted, judged = parted(samples, how)
        self._batches = collate(judged, _BATCH, next(graph.model.parameters()).device)
        self.full_loss = self._judge(copy_to_run(graph.model))

    def loss(self, kept: Kept) -> float:
        """Of the network that keeps these units of every group."""
        whole, plan = self._graph.model, self._graph.plan(kept)
        settings: dict[str, Any] = {"classes": self._classes, "seed": self._seed, "progress": False}
        return self._judge(copy_to_run(mend(whole, plan, plan.apply(whole), self._fitted, **settings)[0]))

    def _judge(self, model: torch.nn.Module) -> float:
        with torch.no_grad(), arithmetic():
            return float(mean_loss(model, self._batches, self._how.loss))
