"""What is done to a candidate before it is judged: a quick repair, new batch-norm statistics, what the user wants.

What a user gets in the end is a repaired network, so that is what candidates are judged as. The loss right after the
cut says little where every cut network is no better than guessing. Images that stand-ins were fitted to flatter those
who lean on them most, so candidates are judged by others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from lcprune.batches import Batch, arithmetic, together
from lcprune.copies import copy_to_run
from lcprune.evaluate.evaluation import CUT, REPAIR, Evaluation
from lcprune.evaluate.evaluator import some_of
from lcprune.plan import Plan
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.statistics import Renewal, statistics_of

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

_MEASURED = 1000  # images, at most, that moments are measured on
_PART = 100
_STATISTICS = 64  # images, at most, that new statistics are taken from


class Preparation:
    """What is done to each candidate, in this order: stand-ins, new statistics, the user's own.

    `quick` gives stand-ins and `renewal` new statistics; they are None if candidates get none. What was measured of the
    network before, if anything, is given as `quick`; `batches` are images to fit to, on the network's device.
    """

    def __init__(
        self, graph: ChannelGraph, batches: Sequence[Batch], how: Evaluation, quick: QuickRepair | None = None
    ) -> None:
        self.batches, self.how = batches, how
        self.quick = (quick or measured(graph, batches)) if how.after == REPAIR else None
        self.renewal = None
        if how.after != CUT and sum(batch.size for batch in batches) > 1 and statistics_of(graph.model):
            with arithmetic():
                self.renewal = Renewal(copy_to_run(graph.model), [_first(batches, _STATISTICS)])

    def __call__(self, model: nn.Module, plan: Plan) -> None:
        """Prepare a cut network, in place."""
        with arithmetic():
            if self.quick is not None:
                self.quick(model, plan)
            if self.renewal is not None:
                self.renewal(model, plan)
        if self.how.prepare is not None:
            self.how.prepare(model, self.batches)
        model.eval()


def parted(samples: Sequence[Any], how: Evaluation) -> tuple[Sequence[Any], Sequence[Any]]:
    """The images that candidates are repaired with, and those that judge them: others, where there are two or more."""
    if how.after != REPAIR or len(samples) < 2:
        return samples, samples
    count = min(_MEASURED, len(samples) // 2)
    return samples[:count], samples[count:]


def measured(graph: ChannelGraph, batches: Sequence[Batch]) -> QuickRepair:
    """What gives candidates their stand-ins: moments of what every layer reads that a candidate may cut."""
    half = graph.plan([np.arange(0, group.size, 2) for group in graph.groups])
    # In parts of one size, whatever the size of the batches: the same numbers for all who measure.
    every = _first(batches, _MEASURED)
    with arithmetic():
        return QuickRepair(graph.model, half, [some_of(every, _PART, at) for at in range(0, every.size, _PART)])


def _first(batches: Sequence[Batch], images: int) -> Batch:
    """So many images, or all there are."""
    found = []
    for batch in batches:
        if images > 0:
            found.append(some_of(batch, images))
            images -= batch.size
    return together(found)
