"""Whether limits can be met at all, found out before anything is made."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from lcprune.graph import ChannelGraph
from lcprune.limit import Limit, format_count
from lcprune.select import Limits, Ranking
from lcprune.task import width_of

logger = logging.getLogger("lcprune")


def check_reachable(
    graph: ChannelGraph,
    macs: Sequence[Limit],
    params: Limit | None,
    min_keep: float,
    multiple_of: int | None,
) -> None:
    """Refuse limits that no choice of units can meet, before a folder is made or an hour is spent.

    A limit that the whole network meets is no error; it is said that nothing has to go.

    Raises:
        BudgetError: with the smallest that can be reached.
    """
    width = width_of(graph, multiple_of)
    ranking = Ranking([np.zeros(size) for size in graph.cost.sizes], graph.cost, min_keep, width)
    if params is not None and not macs:
        ranking.select(Limits(params=params))
    for limit in macs:
        ranking.select(Limits(macs=limit, params=params))
    for name, most, whole in [*(("macs", limit, graph.macs) for limit in macs), ("params", params, graph.params)]:
        if most is not None and most.of(whole) >= whole:
            logger.warning("%s=%s is no limit here: the whole network has %s", name, most, format_count(whole))
