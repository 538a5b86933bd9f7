"""Which metric a method ranks by, if the user does not say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import lcprune
from lcprune.batches import collate
from lcprune.evaluate import Evaluation, parted
from lcprune.setup import set_up
from searching import searching


@pytest.mark.parametrize(("after", "metric"), [("repair", "rebuilt"), ("statistics", "l2"), ("cut", "l2")])
def test_lcp_ranks_by_what_it_judges_after(
    plain: SimpleNamespace, digits: SimpleNamespace, after: str, metric: str
) -> None:
    few = {"pool": 2, "iterations": 1, "sample": 1, "images": 128, "after": after}
    result = lcprune.prune(plain.graph, macs="50%", progress=False, **searching(digits.train, **few))
    assert result.plan.meta["metric"] == metric
    same = lcprune.prune(plain.graph, macs="50%", progress=False, metric=metric, **searching(digits.train, **few))
    assert same.plan.kept == result.plan.kept


def test_other_methods_rank_by_length_with_data_and_without(plain: SimpleNamespace, digits: SimpleNamespace) -> None:
    plans = [
        lcprune.prune(plain.graph, macs="50%", method="naive", progress=False, **more).plan
        for more in ({}, {"data": digits.train}, {"metric": "l2"})
    ]
    assert all(plan.meta["metric"] == "l2" and plan.kept == plans[0].kept for plan in plans)


def test_on_a_frontier_each_method_has_its_own(plain: SimpleNamespace, digits: SimpleNamespace) -> None:
    search = lcprune.LcP(lcprune.Search(pool=2, iterations=1, sample=1))
    given = {"data": Evaluation(digits.train, images=128), "repair": "none", "progress": False}
    frontier = lcprune.pareto(plain.graph, macs=["60%", "40%"], methods=["uniform", search, "naive"], **given)
    assert {point.method: point.plan.meta["metric"] for point in frontier.points} == {
        "uniform": "l2",
        "lcp": "rebuilt",
        "naive": "l2",
    }
    for point in frontier.points:
        if point.method != "lcp":
            alone = lcprune.prune(plain.graph, macs=point.limit, method=point.method, progress=False)
            assert alone.plan.kept == point.plan.kept
    named = lcprune.pareto(plain.graph, macs=["40%"], methods=["naive", search], metric="rebuilt", **given)
    assert {point.plan.meta["metric"] for point in named.points} == {"rebuilt"}


def test_a_task_and_the_metric_alone_say_the_same(plain: SimpleNamespace, digits: SimpleNamespace) -> None:
    given = {"latency": None, "metric": "auto", "min_keep": 0.1, "multiple_of": None, "run": None}
    how = Evaluation(digits.train, images=200)
    with set_up(plain.graph, None, [lcprune.LcP()], data=how, seed=0, progress=False, **given) as made:
        task = made.task
        fitted, _ = parted(task.samples, task.evaluation)
        [batch] = collate(fitted, len(fitted), "cpu")
        alone = lcprune.metrics.score(plain.graph, "rebuilt", [(batch.inputs, ())])
        assert all(np.array_equal(*pair) for pair in zip(task.scores, alone, strict=True))
        other = task.but(metric="l2")
        assert other.quick is task.quick  # what does not depend on scores goes along
        assert not np.array_equal(other.scores[0], task.scores[0])
        assert other.ranking is not task.ranking
