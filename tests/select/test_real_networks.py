"""Selection on traced networks: the pruned network meets its limit, quickly."""

from __future__ import annotations

import statistics
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

import lcprune
from lcprune import models
from lcprune.search import Space
from lcprune.select import Limits, Ranking


@cache
def traced(name: str) -> Any:
    return lcprune.trace(models.build(name), models.example_input(name))


@pytest.mark.parametrize("choose", ["select", "uniform"])
@pytest.mark.parametrize("options", [{}, {"multiple_of": 8}, {"min_keep": 0.3}])
@pytest.mark.parametrize("limits", [Limits(macs=0.5), Limits(params=0.6), Limits(macs=0.7, params=0.6)])
def test_the_pruned_network_costs_what_was_promised(choose: str, options: dict[str, Any], limits: Limits) -> None:
    graph = traced("resnet20")
    ranking = Ranking(lcprune.metrics.score(graph, "l2"), graph.cost, **options)
    plan = graph.plan(getattr(ranking, choose)(limits))
    if limits.macs is not None:
        assert plan.macs <= limits.macs.of(graph.macs)
    if limits.params is not None:
        assert plan.params <= limits.params.of(graph.params)
    small = plan.apply(graph.model)
    assert sum(p.numel() for p in small.parameters()) == plan.params
    for group in graph.groups:
        kept, step = len(plan.kept[group.name]), options.get("multiple_of", 1)
        assert kept % step == 0 or kept == group.size
        assert kept >= options.get("min_keep", 0.10) * group.size


@pytest.mark.parametrize(("name", "allowed_ms"), [("resnet56", 2.0), ("mobilenetv2", 10.0)])
def test_a_candidate_is_planned_in_milliseconds(name: str, allowed_ms: float) -> None:
    graph = traced(name)
    scores = lcprune.metrics.score(graph, "l2")
    ranking, space = Ranking(scores, graph.cost), Space.of(scores)
    generator, times = np.random.default_rng(0), []
    for _ in range(20):
        beta = space.draw(generator)
        started = time.thread_time()  # the machine may be busy with other things
        ranking.select(Limits(macs=0.5), beta)
        times.append(1e3 * (time.thread_time() - started))
    assert statistics.median(times) <= allowed_ms
