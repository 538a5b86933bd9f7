"""What outputs mind: each group cut alone, measured at one width and known in shape at all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import lcprune
from lcprune import choosing, sensitivity
from lcprune.batches import draw
from lcprune.choosing import LcP
from lcprune.errors import DataError
from lcprune.evaluate import Evaluation, answered, make_evaluator, parted
from lcprune.select import Limits
from lcprune.setup import set_up
from lcprune.task import Task


@pytest.fixture
def task(plain, digits, how) -> Iterator[Task]:
    given = {"latency": None, "metric": "l2", "min_keep": 0.1, "multiple_of": None, "run": None}
    with set_up(plain.graph, None, [LcP()], data=how(digits.train), seed=0, progress=False, **given) as made:
        yield made.task


def labelled(batches) -> Evaluation:
    return Evaluation(batches, images=200)


def unlabelled(batches) -> Evaluation:
    return Evaluation([images for images, _ in batches], images=200)


@pytest.mark.parametrize("how", [labelled, unlabelled])
def test_curves_go_through_what_was_measured(task: Task) -> None:
    fitted, judging = parted(task.samples, task.evaluation)
    assert len(fitted) == len(judging) == 100
    samples, distance = answered(task.graph.model, task.samples, task.classes)
    judge = make_evaluator(task.graph, samples, Evaluation(loss_fn=distance))
    measured = 0
    for group, (curve, share) in enumerate(zip(task.moved, task.shares, strict=True)):
        size = task.graph.groups[group].size
        assert curve[-1] == 0 and (np.diff(curve) <= 1e-12).all() and len(curve) == size + 1
        counts = task.ranking.sizes.copy()
        counts[group] = int(0.65 * size)
        loss = judge.loss(task.ranking.kept(counts))
        if share[counts[group]] > 0 and curve[0] > 1.01e-3 * max(other[0] for other in task.moved):
            assert curve[counts[group]] == pytest.approx(loss, rel=1e-3)
            measured += 1
    assert measured >= len(task.moved) // 2


@pytest.mark.parametrize("how", [labelled])
def test_where_outputs_cannot_be_compared_shares_alone_are_known(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise DataError("this one returns no numbers of a fixed size")

    monkeypatch.setattr(sensitivity, "answered", refuses)
    assert all(np.array_equal(*pair) for pair in zip(task.moved, task.shares, strict=True))


@pytest.mark.parametrize("total", [8, 60])
def test_groups_are_measured_where_the_search_is_long_enough(plain, digits, total: int, monkeypatch) -> None:
    calls = []
    real = sensitivity.moved
    monkeypatch.setattr("lcprune.task.moved", lambda *args: calls.append(args) or real(*args))
    search = lcprune.Search(pool=6, iterations=total - 6)
    data = Evaluation(digits.train, images=128)
    groups = len(plain.graph.groups)
    assert 8 < 2 * groups <= 60
    front = lcprune.pareto(plain.graph, macs=[0.6, 0.4], methods=[LcP(search)], learn="each", data=data, progress=False)
    assert len(calls) == (total == 60), "once for all limits"
    assert all(point.plan.meta["after"] == "repair" for point in front.points)


def test_a_search_that_goes_on_does_not_measure_again(plain, digits, tmp_path, monkeypatch) -> None:
    method, data = LcP(lcprune.Search(pool=4, iterations=20)), Evaluation(digits.train, images=128)
    whole = lcprune.prune(plain.graph, macs=0.5, method=method, data=data, run=tmp_path, repair="none", progress=False)
    records = tmp_path / "search.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:9]))

    def fails(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("lcprune.task.moved", fails)
    job = lcprune.Job(tmp_path, resume=True)
    again = lcprune.prune(plain.graph, macs=0.5, method=method, data=data, run=job, repair="none", progress=False)
    assert [record.beta for record in again.history] == [record.beta for record in whole.history]


def test_images_are_the_first_of_those_that_repair_and_judge(digits) -> None:
    samples = draw(digits.train, 1300, seed=0)
    fitted, judging = parted(samples, Evaluation())
    some = [*fitted[:256], *judging[:256]]
    again, others = parted(some, Evaluation())
    assert all(one is other for one, other in zip([*again, *others], some, strict=True)) and len(again) == 256


HOW_MANY = [
    ({}, "repair", 1, 200),
    ({}, "repair", 3, 400),  # of one search that they share
    ({}, "cut", 1, 400),
    ({"algorithm": "evolution"}, "repair", 1, 400),
    ({"pool": 10}, "repair", 1, 200),
    ({"iterations": 5}, "repair", 1, 69),
    ({"pool": 500}, "cut", 1, 500),
]


@pytest.mark.parametrize(("settings", "after", "limits", "total"), HOW_MANY)
def test_a_search_with_a_guide_judges_fewer_unless_it_says_how_many(plain, digits, settings, after, limits, total):
    data, images = Evaluation(digits.train, images=128, after=after), draw(digits.train, 128, seed=0)
    task = Task(plain.graph, Limits(macs=0.5), samples=images, evaluation=data)
    assert choosing.counted(task, lcprune.Search(**settings), limits).total == total
