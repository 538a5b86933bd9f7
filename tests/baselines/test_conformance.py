"""What every method must do: hold limits and floors, cut exactly, repeat itself, go on after an interruption."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import Search
from lcprune.baselines import checkpoints

SHORT = {
    "amc": {"episodes": 8, "warmup": 4, "reward": "loss"},
    "morphnet": {"epochs": 1, "trainings": 2, "batch_size": 32},
    "single_filter": {"step": 12, "tune_steps": 1, "images": 32},
    "single_filter_fisher": {"step": 12, "tune_steps": 1, "images": 32},
    "slimming": {"epochs": 3, "batch_size": 32},
    "soft": {"epochs": 3, "batch_size": 32},
    "channel_lasso": {"images": 64, "points": 4},
    "thinet": {"images": 64, "points": 4},
}
METHODS = sorted(set(lcprune.methods()) - {"schedule"})


def prune(network, digits, method, **settings):
    return lcprune.prune(
        network.model,
        digits.example,
        graph=network.graph,
        method=method,
        **{
            "macs": 0.5,
            "data": digits.batches,
            "search": Search(pool=4, iterations=6, sample=2, images=192),
            "progress": False,
            "options": SHORT.get(method),
            **settings,
        },
    )


class Counted:
    """A loss that counts its calls, and interrupts the run at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.calls, self.stop = 0, stop

    def __call__(self, output, target):
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return cross_entropy(output, target)


def same(first, second) -> bool:
    one, other = first.model.state_dict(), second.model.state_dict()
    return first.plan.kept == second.plan.kept and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", METHODS)
def test_limit_and_floor_hold_and_the_cut_is_exact(method, network, digits) -> None:
    before = copy.deepcopy(network.model.state_dict())
    result = prune(network, digits, method, min_keep=0.3)  # verifies what it returns, weights changed or not
    assert result.plan.macs <= 0.5 * network.graph.macs
    for units, size in zip(result.plan.kept.values(), network.graph.cost.sizes, strict=True):
        assert len(units) >= math.ceil(0.3 * size)
    assert sum(parameter.numel() for parameter in result.model.parameters()) == result.plan.params
    assert lcprune.verify(network.model, result.plan, digits.example).ok
    assert not result.model.training and result.model(digits.example).isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in network.model.state_dict().items())
    assert result.plan.meta["method"] == method


@pytest.mark.parametrize("method", METHODS)
def test_widths_and_other_limits_hold(method, plain, digits) -> None:
    result = prune(plain, digits, method, macs=0.6, params=0.4, multiple_of=2)
    assert result.plan.macs <= 0.6 * plain.graph.macs and result.plan.params <= 0.4 * plain.graph.params
    for units, size in zip(result.plan.kept.values(), plain.graph.cost.sizes, strict=True):
        assert len(units) % 2 == 0 or len(units) == size


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_network(method, plain, digits) -> None:
    first = prune(plain, digits, method, seed=3)
    torch.manual_seed(12345)  # the process's own random numbers must not matter
    np.random.seed(12345)  # noqa: NPY002
    assert same(first, prune(plain, digits, method, seed=3))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_goes_on_to_the_same_network(method, plain, digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    whole = Counted()
    expected = prune(plain, digits, method, loss_fn=whole)
    if whole.calls:
        with pytest.raises(KeyboardInterrupt):
            prune(plain, digits, method, loss_fn=Counted(stop=whole.calls * 3 // 4), run_dir=tmp_path)
        with pytest.raises(lcprune.LcpruneError, match="resume=True"):
            prune(plain, digits, method, loss_fn=Counted(), run_dir=tmp_path)
    rest = Counted()
    assert same(expected, prune(plain, digits, method, loss_fn=rest, run_dir=tmp_path, resume=True))
    assert not whole.calls or rest.calls < 0.75 * whole.calls
    # Only methods that leave something behind can know that it belongs to another run.
    with pytest.raises(lcprune.LcpruneError, match=r"macs|another") if whole.calls else nullcontext():
        prune(plain, digits, method, loss_fn=Counted(), run_dir=tmp_path, resume=True, macs=0.4)


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_that_cannot_be_met_is_refused(method, plain, digits) -> None:
    with pytest.raises(lcprune.BudgetError, match="smallest"):
        prune(plain, digits, method, macs=0.001)


@pytest.mark.parametrize("method", METHODS)
def test_options_that_do_not_exist_are_refused(method, plain, digits) -> None:
    with pytest.raises(lcprune.ConfigError, match=method):
        prune(plain, digits, method, options={"epoch": 3})
