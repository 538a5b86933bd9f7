"""Algorithm 1: prune, tune, tighten; each round saved, and gone on from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import Latency, Search
from lcprune.latency.clock import Clock
from lcprune.select import Limits
from lcprune.setup import Setup, limits_of
from lcprune.steps import tightening
from lcprune.task import Task
from searching import searching

SHORT = {"pool": 5, "iterations": 6, "sample": 3, "images": 64, "after": "cut"}


def tuner(digits, log=None):
    def tune(model) -> None:
        if log is not None:
            log.append(sum(parameter.numel() for parameter in model.parameters()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        model.train()
        for images, labels in digits.train[:8]:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.eval()

    return tune


def same(one, other) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def test_who_tunes_ranks_by_another_metric(plain, digits) -> None:
    settings = {"macs": 0.6, "steps": 1, "progress": False, **searching(digits.train, **{**SHORT, "after": "repair"})}
    tuned = lcprune.prune_in_steps(plain.graph, tune=lambda model: None, **settings)
    assert tuned.plan.meta["metric"] == "l2"
    assert lcprune.prune_in_steps(plain.graph, tune=None, **settings).plan.meta["metric"] == "rebuilt"


def test_every_round_meets_its_limit_and_builds_on_the_tuned_one(trained, digits) -> None:
    sizes: list[int] = []
    result = lcprune.prune_in_steps(
        trained.graph,
        macs=[0.75, 0.58, 0.5],
        **searching(digits.train, **SHORT),
        tune=tuner(digits, sizes),
        progress=False,
    )
    full = trained.graph.macs
    assert [step.limits["macs"] / full for step in result.steps] == pytest.approx([0.75, 0.58, 0.5])
    assert all(step.plan.macs <= step.limits["macs"] for step in result.steps)
    assert sizes == [step.plan.params for step in result.steps]
    # The plan is one of the original network, though found in three cuts; the weights are the tuned ones.
    assert result.plan is result.steps[-1].plan
    fresh = result.plan.apply(trained.model)
    assert {n: v.shape for n, v in fresh.state_dict().items()} == {
        n: v.shape for n, v in result.model.state_dict().items()
    }
    assert not same(fresh, result.model)
    for earlier, later in zip(result.steps, result.steps[1:], strict=False):
        assert all(set(later.plan.kept[name]) <= set(units) for name, units in earlier.plan.kept.items())
    assert lcprune.trace(result.model, digits.example).macs == result.plan.macs


def test_the_floor_is_that_of_the_network_before_the_first_round(plain, digits) -> None:
    result = lcprune.prune_in_steps(
        plain.graph, tune=None, macs=[0.5, 0.3, 0.12], method="naive", min_keep=0.25, progress=False
    )
    for units, size in zip(result.plan.kept.values(), plain.graph.cost.sizes, strict=True):
        assert len(units) >= size / 4


def test_a_number_of_steps_goes_down_evenly(plain, digits) -> None:
    result = lcprune.prune_in_steps(plain.graph, tune=None, macs=0.4, method="naive", progress=False)
    assert [step.limits["macs"] / plain.graph.macs for step in result.steps] == pytest.approx([0.8, 0.6, 0.4])


def test_a_tuner_may_return_another_network(plain, digits) -> None:
    def tune(model):
        other = type(model)(*model)
        other.tuned = True
        return other

    result = lcprune.prune_in_steps(plain.graph, macs=0.5, steps=1, method="naive", tune=tune, progress=False)
    assert result.model.tuned


def test_an_interrupted_run_goes_on_to_the_very_same_result(plain, digits, tmp_path) -> None:
    settings = rounds(plain, digits)
    whole = lcprune.prune_in_steps(plain.graph, tune=tuner(digits), **settings)

    calls: list[int] = []
    tune = tuner(digits)

    def breaks(model) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        tune(model)

    with pytest.raises(KeyboardInterrupt):
        lcprune.prune_in_steps(plain.graph, tune=breaks, run=tmp_path, **settings)
    assert (tmp_path / "step-01" / "step.json").exists() and not (tmp_path / "step-02" / "step.json").exists()

    again: list[int] = []
    result = lcprune.prune_in_steps(
        plain.graph, tune=tuner(digits, again), run=lcprune.Job(tmp_path, resume=True), **settings
    )
    assert len(again) == 2  # the first round was not repeated
    assert result.plan.kept == whole.plan.kept and same(result.model, whole.model)

    done = lcprune.prune_in_steps(plain.graph, tune=breaks, run=lcprune.Job(tmp_path, resume=True), **settings)
    assert len(calls) == 2 and same(done.model, whole.model)  # nothing was left to do
    assert [len(step.history) for step in done.steps] == [11, 11, 11]
    loaded = lcprune.load(tmp_path / "step-03", plain.model)
    assert same(loaded, whole.model)


@pytest.fixture(scope="module")
def broken_off(plain, digits, tmp_path_factory) -> Path:
    """The folder of a run of three rounds that came to the end of the first."""
    folder = tmp_path_factory.mktemp("rounds") / "run"

    def breaks(model) -> None:
        if (folder / "step-01" / "step.json").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lcprune.prune_in_steps(plain.graph, tune=breaks, run=folder, **rounds(plain, digits))
    return folder


def rounds(plain, digits) -> dict[str, object]:
    return {"macs": [0.7, 0.5, 0.3], **searching(digits.train, **SHORT), "progress": False}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"macs": [0.6, 0.5, 0.3]}, "limits: "),
        ({"method": lcprune.LcP(Search(pool=5, iterations=7, sample=3))}, "search.iterations: 6 then, 7 now"),
        ({"metric": "l1"}, "metric: 'l2' then, 'l1' now"),
        ({"method": "uniform"}, "method: 'lcp' then, 'uniform' now"),
        ({"data": "held_out"}, r"\(images: "),
    ],
)
def test_rounds_of_another_run_are_refused(change, named, plain, digits, broken_off, tmp_path) -> None:
    if change.get("data") == "held_out":
        change = searching(digits.held_out, **SHORT)
    shutil.copytree(broken_off, tmp_path / "run")
    settings = {**rounds(plain, digits), **change, "run": lcprune.Job(tmp_path / "run", resume=True)}
    with pytest.raises(lcprune.ConfigError, match=named):
        lcprune.prune_in_steps(plain.graph, tune=None, **settings)


def test_limits_of_rounds(plain) -> None:
    cost = plain.graph.cost
    full, whole = float(cost.macs(cost.sizes)), float(np.sum(cost.sizes))

    def rounds(steps=None, clock=None, macs=None, params=None, latency=None):
        given = limits_of(macs, params, None if latency is None else Latency(latency))
        return tightening(Setup(Task(plain.graph, Limits()), None, clock), given, steps)

    def values(name: str, **given) -> list[float]:
        found = [limits.bounds(cost) for limits in rounds(**given)]
        return [next(bound.value for bound in bounds if bound.name == name) for bounds in found]

    assert values("macs", macs=[0.5, "25%"]) == [0.5 * full, 0.25 * full]
    assert values("macs", steps=2, macs=0.5 * full) == [0.75 * full, 0.5 * full]
    assert values("macs", steps=1, macs=0.5) == values("macs", steps=1, macs=["50%"]) == [0.5 * full]
    assert values("macs", macs=0.4) == pytest.approx([0.8 * full, 0.6 * full, 0.4 * full])  # three steps
    both = values("params", macs=[0.5, 0.25], params=0.3)
    assert both[0] > both[1] == pytest.approx(0.3 * cost.params(cost.sizes))
    clock = Clock(plain.graph, lambda counts: 1e-3 * float(np.sum(counts)), 1e-3 * whole)
    assert values("latency", steps=2, latency="50%", clock=clock) == pytest.approx([0.75e-3 * whole, 0.5e-3 * whole])
    assert values("latency", latency=["0.02ms", "0.01ms"], clock=clock) == [0.02, 0.01]
    for settings, message in [
        ({"macs": [0.3, "50%"]}, r"macs=\[0\.3, '50%'\] grows"),
        ({"macs": [0.5, 0.3], "params": [0.5, 0.4, 0.3]}, "different lengths"),
        ({"macs": [0.5, 0.3], "steps": 3}, "steps=3"),
        ({"macs": []}, "at least one step"),
        ({"macs": 0.5, "steps": 0}, "at least one step"),
    ]:
        with pytest.raises(lcprune.ConfigError, match=message):
            rounds(**settings)
    for name in ("macs", "params"):
        with pytest.raises(lcprune.BudgetError, match=f"{name}=-1 must be more than 0"):
            rounds(**{name: [0.5, -1]})


def test_what_a_traced_graph_ignores_stays_whole_in_every_round(plain) -> None:
    first = plain.graph.groups[0]
    graph = lcprune.trace(plain.model, plain.graph.example_inputs, ignore=[first.name])
    result = lcprune.prune_in_steps(graph, tune=None, macs=[0.6, 0.4], method="naive", progress=False)
    assert result.model.get_parameter(f"{first.name}.weight").shape[0] == first.size
    assert result.plan.macs <= 0.4 * graph.macs and first.name not in result.plan.kept


def test_a_round_that_fails_its_proof_leaves_what_was_found(plain, monkeypatch) -> None:
    verify, calls = lcprune.verify, []

    def second_fails(*args):
        calls.append(verify(*args))
        return replace(calls[-1], ok=len(calls) < 2, max_error=0.5)

    monkeypatch.setattr("lcprune.outcome.verify", second_fails)
    with pytest.raises(lcprune.PlanError, match=r"off by 0\.5") as caught:
        lcprune.prune_in_steps(plain.graph, tune=None, macs=[0.6, 0.4], method="naive", progress=False)
    assert len(caught.value.result.steps) == 2 and caught.value.result.model is not None
