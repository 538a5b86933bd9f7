"""A metric for cuts that are repaired: what nobody else can stand in for."""

from __future__ import annotations

import numpy as np

from lcprune.batches import Batch
from lcprune.evaluate import measured
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.shares import least_lost
from lcprune.scoring.passes import batches
from lcprune.scoring.registry import Context, metrics
from lcprune.scoring.units import Scores, l2_normalised
from lcprune.scoring.weights import l2

_APART = 1e-9  # between two units that nobody would miss


@metrics.register("rebuilt", needs_data=True)
def rebuilt(graph: ChannelGraph, context: Context) -> Scores:
    """Root of the share that a unit's readers lose with it, after what units that stay can rebuild; needs no labels."""
    read = batches(graph, context, "rebuilt")
    return rebuilt_by(measured(graph, [Batch(inputs, (), samples) for inputs, _, samples in read]), graph)


def rebuilt_by(quick: QuickRepair, graph: ChannelGraph) -> Scores:
    """The metric, from what was measured before; where no reader was, `l2` of the same length."""
    plain = l2_normalised(l2(graph))
    found = []
    for eliminated, instead in zip(least_lost(quick, graph), plain, strict=True):
        scores = instead
        if eliminated is not None:
            order, shares = eliminated
            scores[order] = np.sqrt(shares) + _APART * np.arange(len(order))
        found.append(scores)
    return found
