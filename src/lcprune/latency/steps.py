"""Which widths a device likes, read off a latency table."""

from __future__ import annotations

import numpy as np

from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.predict import Predictor
from lcprune.latency.table import Table

WIDTHS = (1, 2, 4, 8, 16, 32)
_PRICE = 0.02  # of the least latency: what rounding every width up may cost


def read_steps(table: Table, graph: ChannelGraph) -> int:
    """The largest step to which all widths can be rounded up for (almost) nothing: the device rounds them anyway, or
    runs round widths faster.

    Where time is proportional to width there is none, and the answer is 1. Where time hardly depends on width, any
    step would do; but then limits are met by few networks, so a typical group is left at least four widths.

    Args:
        table: times of the network's layers.
        graph: of the network.
    """
    sizes = graph.cost.sizes
    rng = np.random.default_rng(0)
    plans = [np.maximum(1, np.round(sizes * rng.uniform(0.3, 1.0, len(sizes)))).astype(np.int64) for _ in range(16)]
    totals = {}
    most = max(1.0, float(np.median(sizes)) / 4)
    for width in (width for width in WIDTHS if width <= most):
        predict = Predictor(table, graph, width)
        totals[width] = sum(predict.layers(np.minimum(sizes, -(-counts // width) * width)) for counts in plans)
    return max(width for width, total in totals.items() if total <= (1 + _PRICE) * min(totals.values()))
