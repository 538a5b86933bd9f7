"""A latency limit holds when measured; what was limit, predicted and measured is always said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lcprune
from lcprune import latency
from lcprune.latency.clock import Clock
from lcprune.latency.hold import hold
from lcprune.latency.limit import as_limits, parse_latency


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("3.5ms", (3.5, True)),
        ("0.8 ms", (0.8, True)),
        ("60%", (0.6, False)),
        (0.6, (0.6, False)),
        (3, (3.0, True)),
        ("5e-05ms", (5e-5, True)),
    ],
)
def test_limits_as_people_write_them(written, expected) -> None:
    assert parse_latency(written) == pytest.approx(expected)


@pytest.mark.parametrize("written", ["fast", "-3ms", "0ms", "120%", 0, -1, True, float("nan"), None])
def test_what_is_no_limit_is_refused(written) -> None:
    with pytest.raises(lcprune.BudgetError, match=r"3\.5ms"):
        parse_latency(written)


def test_milliseconds_below_one_are_not_shares() -> None:
    assert as_limits("0.8ms", 1.6) == 0.5 and as_limits(["3ms", "50%"], 10.0) == [3.0, 0.5]
    assert as_limits("0.8ms", 0.4) == 1.0


class Fake:
    """A clock that runs as slowly as it is told to."""

    def __init__(self, graph: Any, slower: float) -> None:
        self.slower, self.clock = slower, Clock(graph, lambda counts: float(np.sum(counts)))
        self.measured: list[int] = []

    def make(self) -> Any:
        outer = self

        class Slow(Clock):
            def measure(self, smaller: Any) -> tuple[float, float]:
                outer.measured.append(smaller)
                return float(sum(self.graph.cost.sizes)), outer.slower * smaller

        clock = self.clock
        return Slow(clock.graph, clock.predict, None, latency.make_backend("eager", "cpu"))


def keep(graph: Any, ms: float) -> list[Any]:
    """About so many units, the same share of every group."""
    share = ms / sum(graph.cost.sizes)
    return [np.arange(max(1, int(share * size))) for size in graph.cost.sizes]


def test_a_missed_limit_is_tightened_until_it_is_met(plain) -> None:
    graph = plain.graph
    half = sum(graph.cost.sizes) / 2
    fake = Fake(graph, 1.3)
    _, size, outcome = hold(
        fake.make(), "50%", keep(graph, half), lambda k: (None, sum(map(len, k))), lambda ms: keep(graph, ms)
    )
    assert outcome.met and outcome.measured_ms <= half == outcome.limit_ms
    assert outcome.measured_ms == pytest.approx(1.3 * size) and 2 <= len(outcome.attempts) == len(fake.measured) <= 4
    assert outcome.error == pytest.approx(1 / 1.3 - 1)
    assert json.loads(json.dumps(outcome.to_json()))["met"] is True


def test_a_limit_that_is_left_unused_is_used(plain) -> None:
    graph = plain.graph
    half = sum(graph.cost.sizes) / 2
    fake = Fake(graph, 0.7)
    _, size, outcome = hold(
        fake.make(), "50%", keep(graph, half), lambda k: (None, sum(map(len, k))), lambda ms: keep(graph, ms)
    )
    assert outcome.met and size > half and 0.85 * half < outcome.measured_ms <= half


def test_a_limit_that_stays_missed_is_said_plainly(plain) -> None:
    graph = plain.graph
    half = sum(graph.cost.sizes) / 2
    fake = Fake(graph, 30.0)
    _, _, outcome = hold(
        fake.make(), "50%", keep(graph, half), lambda k: (None, sum(map(len, k))), lambda ms: keep(graph, ms)
    )
    assert not outcome.met and "missed, after" in str(outcome) and 1 < len(outcome.attempts) <= 4
    # A method that cannot select again says so as well.
    _, _, outcome = hold(fake.make(), "50%", keep(graph, half), lambda k: (None, sum(map(len, k))), lambda ms: None)
    assert not outcome.met and len(outcome.attempts) == 1


@pytest.mark.parametrize("method", ["naive", "uniform", "lcp"])
def test_prune_to_a_latency(plain, digits, method, tmp_path) -> None:
    result = lcprune.prune(
        plain.model,
        digits.example,
        method=method,
        data=digits.train,
        latency_ms="80%",
        macs=0.9,
        batch=128,
        search=lcprune.Search(pool=4, iterations=4, sample=2, images=64),
        run_dir=tmp_path,
        progress=False,
    )
    found = result.latency
    assert found is not None and found.measured_ms and found.original_ms and found.predicted_ms
    assert found.met == (found.measured_ms <= found.limit_ms)
    assert found.limit_ms == pytest.approx(0.8 * found.original_ms)
    assert result.plan.macs <= 0.9 * result.plan.original_macs
    assert result.plan.meta["latency"] == found.to_json()
    assert latency.Table.load(tmp_path / "latency.json").batch == 128
    lcprune.Plan.load(_saved(result.plan, tmp_path)).apply(plain.model)


def _saved(plan: Any, folder: Any) -> Any:
    plan.save(folder / "plan.json")
    return folder / "plan.json"


def test_a_table_from_elsewhere_is_a_limit_without_a_clock(plain, digits) -> None:
    graph = plain.graph
    stored = latency.blank(graph)
    for entry in stored["layers"]:
        entry["ms"] = (
            np.add.outer(*[np.array(g) * 1.0 for g in entry["widths"]]).tolist()
            if len(entry["widths"]) == 2
            else [float(w) for w in entry["widths"][0]]
        )
    table = latency.Table.from_json(stored)
    predict = latency.Predictor(table, graph)
    for width in (1, 4):
        result = lcprune.prune(
            plain.model,
            digits.example,
            method="naive",
            latency_ms=0.5,
            latency=table,
            multiple_of=width,
            progress=False,
        )
        counts = np.array([len(units) for units in result.plan.kept.values()])
        assert predict(counts) <= 0.5 * predict(graph.cost.sizes) == pytest.approx(result.latency.limit_ms)
        assert ((counts % width == 0) | (counts == graph.cost.sizes)).all()
        assert result.latency.measured_ms is None and "not measured here" in str(result.latency)


def test_auto_widths_keep_the_limit(plain, digits) -> None:
    graph = plain.graph
    stored = latency.blank(graph)
    for entry in stored["layers"]:
        stairs = [np.array(range(1, grid[-1] + 1)) for grid in entry["widths"]]
        entry["widths"] = [grid.tolist() for grid in stairs]
        rounded = [-(-grid // 4) * 4.0 for grid in stairs]
        entry["ms"] = (np.multiply.outer(*rounded) if len(rounded) == 2 else rounded[0]).tolist()
    table = latency.Table.from_json(stored)
    result = lcprune.prune(
        plain.model,
        digits.example,
        method="naive",
        latency_ms="60%",
        latency=table,
        multiple_of="auto",
        progress=False,
    )
    assert result.plan.meta["multiple_of"] == 4 and result.latency.met


def test_a_frontier_of_latencies(plain, digits) -> None:
    frontier = lcprune.pareto(
        plain.model,
        digits.example,
        data=digits.train,
        latency_ms=["90%", "80%"],
        batch=128,
        search=lcprune.Search(pool=4, iterations=4, sample=2, images=64),
        graph=plain.graph,
        progress=False,
    )
    assert [point.limit for point in frontier.curve("lcp")] == [0.9, 0.8]
    for point in frontier.points:
        assert point.latency is not None and point.latency.measured_ms
        assert point.plan.meta["latency"]["limit_ms"] == pytest.approx(point.limit * point.latency.original_ms)
        assert point.latency.met == (point.latency.measured_ms <= point.latency.limit_ms)


def test_several_steps_end_at_the_latency(plain, digits) -> None:
    result = lcprune.prune(
        plain.model,
        digits.example,
        method="naive",
        latency_ms=[0.8, 0.5],
        latency=lambda counts: 1e-3 * float(np.sum(counts)),
        progress=False,
    )
    total = sum(plain.graph.cost.sizes)
    kept = [sum(map(len, step.plan.kept.values())) for step in result.steps]
    assert kept[0] <= 0.8 * total and kept[1] <= 0.5 * total < kept[0]
    assert result.latency is not None and result.latency.limit_ms == pytest.approx(0.5e-3 * total)


def test_a_clock_follows_a_network_that_was_cut(plain) -> None:
    graph = plain.graph
    clock = Clock(graph, lambda counts: float(np.sum(counts)))
    names = graph.cost.names
    later = replace(graph, groups=graph.groups[1:], cost=type(graph.cost)(names[1:], graph.cost.sizes[1:], [], []))
    kept = {name: range(3) for name in names}
    after = clock.after(later, kept)
    assert after.predict(np.full(len(names) - 1, 2)) == 3 + 2 * (len(names) - 1) and after.whole == clock.whole
    assert clock.after(graph, kept) is clock


def test_a_run_that_goes_on_keeps_the_network_that_was_measured(plain, tmp_path) -> None:
    """Measured again, another network might be chosen, while the first has been tuned in between."""
    graph, file = plain.graph, tmp_path / "held.json"
    selected = keep(graph, sum(graph.cost.sizes) / 2)

    def run(slower: float, given: str = "50%", resume: bool = True) -> tuple[int, Any, int]:
        fake = Fake(graph, slower)
        cut = lambda k: (None, sum(map(len, k)))  # noqa: E731
        _, size, outcome = hold(fake.make(), given, selected, cut, lambda ms: keep(graph, ms), file, resume)
        return size, outcome, len(fake.measured)

    size, outcome, measured = run(1.3)
    assert measured > 1
    assert run(2.0) == (size, outcome, 0)
    assert run(2.0, resume=False)[0] < size
    assert run(2.0, given="60%")[2] > 0


def test_algorithm_1_that_goes_on_says_what_became_of_the_limit(plain, digits, tmp_path) -> None:
    given = {"method": "naive", "latency_ms": [0.8, 0.5], "latency": lambda counts: float(np.sum(counts))}
    first = lcprune.prune(plain.model, digits.example, run_dir=tmp_path, progress=False, **given)
    again = lcprune.prune(plain.model, digits.example, run_dir=tmp_path, resume=True, progress=False, **given)
    assert again.latency == first.latency and again.latency is not None


def test_a_table_beside_a_run_is_for_what_it_was_measured_with(plain, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("lcprune.latency.clock.measure_table", lambda graph, batch, **_: _filled(graph, batch))
    keep = tmp_path / "latency.json"

    def batch_of(batch: int, resume: bool) -> int:
        return latency.make_clock(plain.graph, batch=batch, keep=keep, resume=resume, progress=False).batch

    assert batch_of(4, False) == 4 and batch_of(2, False) == 2 and batch_of(4, True) == 4
    assert not caplog.records
    batch_of(4, True)
    assert "another device" in caplog.text and "where this run began" in caplog.text


def test_a_batch_that_a_table_is_not_of_is_refused(plain) -> None:
    table = _filled(plain.graph, 4)
    assert latency.make_clock(plain.graph, table).batch == latency.make_clock(plain.graph, table, batch=4).batch == 4
    with pytest.raises(lcprune.errors.LatencyError, match=r"batch=8, but .* batch 4"):
        latency.make_clock(plain.graph, table, batch=8)


def _filled(graph: Any, batch: int) -> Any:
    stored = latency.blank(graph, batch)
    for layer in stored["layers"]:
        layer["ms"] = np.ones([len(grid) for grid in layer["widths"]]).tolist()
    return latency.Table.from_json({**stored, "backend": "eager", "device": "another device"})
