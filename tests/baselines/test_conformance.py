"""What every method must do: hold limits and floors, cut exactly, repeat itself, go on after an interruption."""

from __future__ import annotations

import copy
import functools
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import few_digits
import lcprune
from lcprune import Search
from lcprune.baselines import amc, training

SHORT = {
    "amc": {"episodes": 8, "warmup": 4, "reward": "loss"},
    "morphnet": {"epochs": 1, "trainings": 2, "batch_size": 32},
    "single_filter": {"step": 12, "tune_steps": 1, "images": 32},
    "single_filter_fisher": {"step": 12, "tune_steps": 1, "images": 32},
    "slimming": {"epochs": 3, "batch_size": 32},
    "soft": {"epochs": 3, "batch_size": 32},
    "channel_lasso": {"images": 64, "points": 4},
    "thinet": {"images": 64, "points": 4},
    "lcp": {"search": Search(pool=4, iterations=6, sample=2)},
    "schedule": {"shares": {"*": 0.5}},  # which it cannot do without
}
METHODS = lcprune.methods()
# These draw images, actions or orders; the others depend on the weights alone.
RANDOM = sorted(set(METHODS) - {"uniform", "naive", "schedule", "l1_schedule"})
TRAINED = ["morphnet", "single_filter", "single_filter_fisher", "slimming", "soft"]


def prune(network, digits, method, data=None, images=192, loss_fn=cross_entropy, options=None, folder=None, **settings):
    made = lcprune.methods.make(method, SHORT.get(method) if options is None else options)
    evaluation = lcprune.Evaluation(data or digits.batches, loss_fn, images)
    run = lcprune.Job(folder, resume=settings.pop("resume", False))
    # What a method chooses and makes of the weights is looked at; repairs have tests of their own.
    usual = {"macs": 0.5, "method": made, "data": evaluation, "run": run, "repair": "none", "progress": False}
    return lcprune.prune(network.graph, **{**usual, **settings})


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


@pytest.fixture(autouse=True)
def _proved_once(request, monkeypatch) -> None:
    """That cuts are exact is proved by the test that asks for it; the others do not wait for the proof."""
    if "cut_is_exact" not in request.node.name:
        monkeypatch.setattr("lcprune.framework.check", lambda *arguments: None)


@pytest.fixture(scope="module")
def uninterrupted(plain, digits):
    """`uninterrupted(method)`: what a method gives, and how often it asked for a loss; made once."""

    @functools.cache
    def run(method: str):
        counted = Counted()
        return prune(plain, digits, method, loss_fn=counted), counted.calls

    return run


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
def test_the_same_seed_gives_the_same_network(method, plain, digits, uninterrupted) -> None:
    first, _ = uninterrupted(method)
    torch.manual_seed(12345)  # the process's own random numbers must not matter
    np.random.seed(12345)  # noqa: NPY002
    assert same(first, prune(plain, digits, method))


@pytest.mark.parametrize("method", RANDOM)
def test_another_seed_is_another_trial(method, plain, digits) -> None:
    # Half of the images: which ones depends on the seed.
    first, other = (prune(plain, digits, method, seed=seed, images=96) for seed in (0, 1))
    assert not same(first, other) or [one.beta for one in first.history] != [one.beta for one in other.history]


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_goes_on_to_the_same_network(
    method, plain, digits, uninterrupted, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(training, "SECONDS", 0.0)
    expected, calls = uninterrupted(method)
    if calls:
        with pytest.raises(KeyboardInterrupt):
            prune(plain, digits, method, loss_fn=Counted(stop=calls * 3 // 4), folder=tmp_path)
        with pytest.raises(lcprune.LcpruneError, match="resume=True"):
            prune(plain, digits, method, loss_fn=Counted(), folder=tmp_path)
    rest = Counted()
    assert same(expected, prune(plain, digits, method, loss_fn=rest, folder=tmp_path, resume=True))
    assert not calls or rest.calls < 0.75 * calls
    # Only methods that leave something behind can know that it belongs to another run.
    with pytest.raises(lcprune.LcpruneError, match=r"macs|another") if calls else nullcontext():
        prune(plain, digits, method, loss_fn=Counted(), folder=tmp_path, resume=True, macs=0.4)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_interrupted_early_goes_on_to_the_same_network(method, plain, digits, uninterrupted, tmp_path) -> None:
    expected, calls = uninterrupted(method)
    if calls:  # nothing, or not much, has been kept by then
        with pytest.raises(KeyboardInterrupt):
            prune(plain, digits, method, loss_fn=Counted(stop=calls // 4 + 1), folder=tmp_path)
    assert same(expected, prune(plain, digits, method, loss_fn=Counted(), folder=tmp_path, resume=True))


@pytest.mark.parametrize("method", TRAINED)
def test_training_on_a_whole_set_repeats_itself_and_goes_on(method, plain, digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training, "SECONDS", 0.0)
    images = few_digits.build().batches("train", 64, limit=192, seed=0)  # the method trains on all behind them
    settings = {"data": images, "options": {**SHORT[method], "batch_size": 128}}
    whole = Counted()
    expected = prune(plain, digits, method, loss_fn=whole, **settings)
    assert same(expected, prune(plain, digits, method, loss_fn=Counted(), **settings))
    with pytest.raises(KeyboardInterrupt):
        prune(plain, digits, method, loss_fn=Counted(stop=whole.calls * 3 // 4), folder=tmp_path, **settings)
    rest = Counted()
    assert same(expected, prune(plain, digits, method, loss_fn=rest, folder=tmp_path, resume=True, **settings))
    assert rest.calls < 0.75 * whole.calls


def test_amc_rewarded_by_accuracy_repeats_itself_and_goes_on(plain, digits, tmp_path, monkeypatch) -> None:
    settings = {
        "options": {"episodes": 8, "warmup": 4},
        "data": few_digits.build().batches("train", 64, limit=192, seed=0),
    }
    expected = prune(plain, digits, "amc", **settings)
    wrong = [record.loss * 58 for record in expected.history]  # of the validation images
    assert wrong == pytest.approx(np.round(wrong), abs=1e-3)
    judge = amc.top1_error
    calls = iter(range(6))

    def interrupt(output, target):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return judge(output, target)

    interrupt.__qualname__ = judge.__qualname__  # records know the loss by its name
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(amc, "top1_error", interrupt)
        prune(plain, digits, "amc", folder=tmp_path, **settings)
    assert same(expected, prune(plain, digits, "amc", folder=tmp_path, resume=True, **settings))


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_that_cannot_be_met_is_refused_before_anything_is_trained(method, plain, digits) -> None:
    counted = Counted()
    with pytest.raises(lcprune.BudgetError, match="smallest"):
        prune(plain, digits, method, macs=0.001, loss_fn=counted)
    assert counted.calls == 0 or method == "lcp"  # which has looked at the whole network by then, and trains nothing


@pytest.mark.parametrize("method", METHODS)
def test_options_that_do_not_exist_are_refused(method, plain, digits) -> None:
    with pytest.raises(lcprune.ConfigError, match=method):
        prune(plain, digits, method, options={"epoch": 3})
