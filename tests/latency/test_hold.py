"""A latency limit holds when measured, closely; what became of it is always said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lcprune
from lcprune import Latency
from lcprune.latency import Table
from lcprune.latency.clock import Clock, make_clock
from lcprune.latency.hold import ATTEMPTS, Tried, hold, next_macs
from lcprune.limit import Limit
from searching import searching, searching_many

SHORT = {"pool": 4, "iterations": 4, "sample": 2, "images": 64, "after": "cut"}


def prune(network: Any, digits: Any, latency: Any, method: Any = "naive", **settings: Any) -> lcprune.PruneResult:
    how = searching(digits.train, **SHORT) if method == "lcp" else {"method": method}
    by = lcprune.prune_in_steps if "tune" in settings else lcprune.prune
    return by(network.graph, latency=latency, progress=False, **how, **settings)


@pytest.mark.parametrize("method", ["naive", "uniform", "lcp"])
@pytest.mark.parametrize("limit", ["60%", "6ms"])
def test_the_measured_latency_is_within_the_limit_and_near_it(plain, digits, pretend, method, limit, tmp_path) -> None:
    backend = pretend()
    result = prune(plain, digits, Latency(limit, batch=3, backend=backend), method, run=tmp_path)
    found, original = result.latency, backend.ms(plain.model)
    assert found.met and found.measured_ms == pytest.approx(backend.ms(result.model))
    assert found.limit_ms == pytest.approx(0.6 * original if limit == "60%" else 6.0)
    assert found.measured_ms <= found.limit_ms and found.predicted_ms is None
    # Near the limit, as far as whole units allow: which network that is differs by how a machine has trained it.
    cost = plain.graph.cost
    less = [cost.params(cost.sizes - one) for one in np.eye(len(cost.sizes), dtype=int)]
    unit = (plain.graph.params - min(less)) / 1000
    assert found.measured_ms >= 0.97 * found.limit_ms - unit
    assert found.original_ms == pytest.approx(original) and 1 <= len(found.attempts) <= ATTEMPTS
    assert found.about["backend"] == "pretend" and found.about["batch"] == 3
    assert result.plan.meta["latency"] == found.to_json() == json.loads(json.dumps(found.to_json()))
    assert result.plan.macs == max(one["macs"] for one in found.attempts if one["measured_ms"] <= one["limit_ms"])


def test_milliseconds_below_one_are_milliseconds(plain, digits, pretend) -> None:
    backend = pretend(lambda model: 1e-3 * sum(p.numel() for p in model.parameters()) / 1000)
    result = prune(plain, digits, Latency("0.006ms", backend=backend))
    assert result.latency.met and 0.0057 < result.latency.measured_ms <= 0.006


def test_other_limits_hold_with_it(plain, digits, pretend) -> None:
    result = prune(plain, digits, Latency("90%", backend=pretend()), macs=0.3, params="80%")
    assert result.plan.macs <= 0.3 * plain.graph.macs and result.plan.params <= 0.8 * plain.graph.params
    assert result.latency.met and result.latency.measured_ms < 0.8 * result.latency.limit_ms
    assert len(result.latency.attempts) == 1  # nothing larger may be had


@pytest.mark.parametrize("multiple_of", [1, 4, 8])
def test_a_device_that_rounds_widths_up_is_held_too(plain, digits, pretend, multiple_of) -> None:
    def steps(model: Any) -> float:
        shapes = [p.shape for p in model.parameters() if p.dim() == 4]
        return sum(float(np.prod([-(-s[0] // 8) * 8, -(-s[1] // 8) * 8, *s[2:]])) for s in shapes) / 1000

    result = prune(plain, digits, Latency("70%", backend=pretend(steps)), multiple_of=multiple_of)
    assert result.latency.met and result.latency.measured_ms > 0.55 * result.latency.original_ms
    larger = [one for one in result.latency.attempts if one["macs"] > result.plan.macs]
    assert all(one["measured_ms"] > one["limit_ms"] for one in larger)


def test_a_limit_below_the_smallest_network_is_refused_with_what_that_takes(plain, digits, pretend) -> None:
    with pytest.raises(lcprune.BudgetError, match=r"latency='1%' cannot be met: .* the smallest network takes .* ms"):
        prune(plain, digits, Latency("1%", backend=pretend()))


def test_a_limit_that_stays_missed_is_reported(plain, digits, pretend, caplog) -> None:
    def slower_later(model: Any) -> float:  # what was measured first does not hold any more
        slow = 1.0 if model is plain.model or len(backend.timed) <= 4 else 100.0
        return slow * sum(p.numel() for p in model.parameters()) / 1000

    backend = pretend(slower_later)
    with caplog.at_level("WARNING", "lcprune"):
        result = prune(plain, digits, Latency("20%", backend=backend))
    assert not result.latency.met and "missed, after" in str(result.latency) and "missed, after" in caplog.text
    assert 1 < len(result.latency.attempts) <= ATTEMPTS
    assert result.latency.attempts[-1]["macs"] == result.plan.macs


def test_a_method_that_cannot_select_again_is_measured_once(plain, digits, pretend) -> None:
    shares = {group.name: 0.5 for group in plain.graph.groups}
    for limit, met in (("90%", True), ("20%", False)):
        result = prune(plain, digits, Latency(limit, backend=pretend()), lcprune.Schedule(shares))
        assert result.latency.met is met and len(result.latency.attempts) == 1


def test_a_method_that_changes_weights_keeps_them(plain, digits, pretend) -> None:
    # The surgery is proved on the network that the method made.
    thinet = lcprune.methods.make("thinet", {"images": 16})
    result = prune(plain, digits, Latency("80%", backend=pretend()), thinet, data=digits.train)
    assert len(result.latency.attempts) == 1 and result.plan.meta["reconstructed"] > 0


def test_a_frontier_of_latencies(plain, digits, pretend) -> None:
    backend = pretend()
    frontier = lcprune.pareto(
        plain.graph,
        latency=Latency(["80%", "5ms"], backend=backend),
        **searching_many(digits.train, **SHORT),
        progress=False,
    )
    assert [point.limit for point in frontier.curve("lcp")] == [0.8, 5.0]
    for point in frontier.points:
        limit = 5.0 if point.limit == 5.0 else 0.8 * backend.ms(plain.model)
        assert point.latency.met and point.latency.limit_ms == pytest.approx(limit)
        assert 0.93 * limit <= backend.ms(point.model) == pytest.approx(point.latency.measured_ms)
        assert point.plan.meta["latency"] == point.latency.to_json()


def test_algorithm_1_tightens_its_latency_and_holds_the_last(plain, digits, pretend) -> None:
    backend = pretend()
    result = prune(plain, digits, Latency(["80%", "50%"], backend=backend), tune=lambda model: None)
    whole = backend.ms(plain.model)
    assert [step.limits["latency"] / whole for step in result.steps] == pytest.approx([0.8, 0.5])
    assert result.latency.met and 0.48 * whole < backend.ms(result.model) <= 0.5 * whole
    assert result.steps[0].plan.macs > result.steps[1].plan.macs


def test_a_run_that_goes_on_measures_nothing_again(plain, digits, pretend, tmp_path) -> None:
    """Measured again, another network might be chosen, while the first has been tuned in between."""
    first = prune(plain, digits, Latency("60%", backend=pretend()), "lcp", run=tmp_path)
    table = Table.load(tmp_path / "latency.json")
    assert table.points[-1][0] == plain.graph.macs and table.about["backend"] == "pretend"
    slower = pretend(lambda model: 1.0)  # a machine on which nothing that is cut is faster
    again = prune(plain, digits, Latency(0.6, backend=slower), "lcp", run=lcprune.Job(tmp_path, resume=True))
    assert not slower.timed and again.latency == first.latency and again.plan.kept == first.plan.kept
    with pytest.raises(lcprune.BudgetError, match="cannot be met"):
        prune(plain, digits, Latency("60%", backend=slower), "naive", run=tmp_path)
    assert slower.timed


def test_a_frontier_that_goes_on_measures_nothing_again(plain, digits, pretend, tmp_path) -> None:
    common = {**searching_many(digits.train, **SHORT), "progress": False}
    first = lcprune.pareto(plain.graph, latency=Latency(["60%"], backend=pretend()), run=tmp_path, **common)
    slower = pretend(lambda model: 1.0)
    latency = Latency(["60%"], backend=slower)
    again = lcprune.pareto(plain.graph, latency=latency, run=lcprune.Job(tmp_path, resume=True), **common)
    assert not slower.timed and [p.plan.kept for p in again.points] == [p.plan.kept for p in first.points]


def test_algorithm_1_that_goes_on_knows_what_became_of_the_limit(plain, digits, pretend, tmp_path) -> None:
    first = prune(plain, digits, Latency([0.8, 0.5], backend=pretend()), tune=None, run=tmp_path)
    slower = pretend(lambda model: 1.0)
    again = prune(plain, digits, Latency([0.8, 0.5], backend=slower), tune=None, run=lcprune.Job(tmp_path, resume=True))
    assert again.latency == first.latency and again.latency is not None and not slower.timed


def test_points_of_another_batch_size_are_measured_anew(plain, pretend, tmp_path, caplog) -> None:
    def measured(batch: int) -> int:
        backend = pretend()
        make_clock(plain.graph, Latency("60%", batch, backend), folder=tmp_path, resume=True)
        return len(backend.timed)

    assert [measured(4), measured(4), measured(2), measured(4)] == [4, 0, 4, 4]
    stored = json.loads((tmp_path / "latency.json").read_text())
    (tmp_path / "latency.json").write_text(json.dumps({**stored, "device": "another device"}))
    assert measured(4) == 0 and "began on another device" in caplog.text


def test_a_clock_follows_a_network_that_was_cut(plain) -> None:
    graph = plain.graph
    clock = Clock(graph, lambda counts: float(np.sum(counts)), 100.0)
    names = graph.cost.names
    later = replace(graph, groups=graph.groups[1:], cost=type(graph.cost)(names[1:], graph.cost.sizes[1:], [], []))
    kept = {name: range(3) for name in names}
    after = clock.after(later, kept)
    assert after.predict(np.full(len(names) - 1, 2)) == 3 + 2 * (len(names) - 1) and after.whole == clock.whole
    assert clock.after(graph, kept) is clock


TABLE = Table.through([(10, 1.0), (100, 10.0)])


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([Tried(50, 0.98)], None),  # near enough
        ([Tried(50, 2.0)], 50 * 0.985 / 2),  # along the table
        ([Tried(50, 0.5)], 98.5),
        ([Tried(50, 1.001)], 49),  # at least a step
        ([Tried(50, 20.0)], 10),  # not below the smallest
        ([Tried(99, 0.5)], 100),  # nor above the whole
        ([Tried(50, 0.95, most=53)], 54.06),  # nothing between 50 and 53
        ([Tried(90, 0.95, most=100)], None),  # nothing is larger
        ([Tried(10, 2.0)], None),  # nothing is smaller
        ([Tried(40, 0.9), Tried(60, 1.1)], 48.5),  # on the line between both
        ([Tried(40, 0.5), Tried(60, 1.0001)], 58),  # but not too near to either
        ([Tried(59.8, 0.5), Tried(60, 1.5)], None),  # nothing in between
        ([Tried(40, 0.9, most=50), Tried(60, 1.1)], 54.25),  # nothing between 40 and 50
        ([Tried(30, 1.2), Tried(40, 0.9), Tried(60, 1.1)], 48.5),  # a smaller one that is slower does not matter
    ],
)
def test_the_next_network_lies_where_the_limit_is_expected(tried, expected) -> None:
    assert next_macs(tried, TABLE) == (None if expected is None else pytest.approx(expected))


def test_a_coarse_network_uses_its_limit(plain, pretend) -> None:
    """The first network is the largest that is expected to fit, and a little more would fit, too."""
    backend, sizes = pretend(), plain.graph.cost.sizes

    def cut(kept: Any) -> Any:
        plan = plain.graph.plan(kept)
        return plan, plan.apply(plain.model)

    def again(macs: float) -> Any:  # in steps of an eighth of every width
        steps = next(n for n in range(8, 0, -1) if n == 1 or plain.graph.cost.macs(sizes * n // 8) <= macs)
        return [np.arange(size * steps // 8) for size in sizes]

    found = [backend.ms(cut([np.arange(size * steps // 8) for size in sizes])[1]) for steps in range(1, 9)]
    table = Table.through([(0.1 * plain.graph.macs, 0.1 * found[-1]), (plain.graph.macs, found[-1])])
    clock = Clock(plain.graph, lambda counts: 1.0, found[-1], 1, backend, table)
    limit = Limit.parse(f"{1.001 * found[5]}ms", "latency")
    first = [np.arange(size * 5 // 8) for size in sizes]
    _, _, outcome = hold(clock, limit, first, cut, again)
    assert outcome.met and outcome.measured_ms == pytest.approx(found[5])


def test_no_more_networks_are_measured_than_stated(plain, pretend) -> None:
    """A clock that says anything at all is not followed for ever."""
    rng = np.random.default_rng(0)
    backend = pretend(lambda model: float(rng.uniform(0.1, 2.0)))
    clock = Clock(plain.graph, lambda counts: 1.0, 1.0, 1, backend, Table.through([(1e3, 0.1), (1e6, 1.0)]))
    sizes = plain.graph.cost.sizes

    def cut(kept: Any) -> Any:
        plan = plain.graph.plan(kept)
        return plan, plan.apply(plain.model)

    def again(macs: float) -> Any:
        return [np.arange(max(1, int(size * min(1.0, macs / plain.graph.macs) ** 0.5))) for size in sizes]

    _, _, outcome = hold(clock, Limit.parse("0.4ms", "latency"), again(4e5), cut, again)
    assert 1 <= len(outcome.attempts) <= ATTEMPTS
