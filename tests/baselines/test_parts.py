"""The parts of which methods are made, against what they are defined by."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import lcprune
from lcprune import data
from lcprune.baselines import ddpg
from lcprune.baselines.amc import Amc
from lcprune.baselines.ddpg import Agent, Transition
from lcprune.baselines.reconstruction import greedy, lasso
from lcprune.baselines.training import TaskFeed, TrainingOptions
from lcprune.baselines.units import put_back, zero_units
from lcprune.select import Limits
from lcprune.task import Task


def _columns(rng: np.random.Generator, units: int) -> tuple[np.ndarray, np.ndarray]:
    parts = rng.normal(size=(200, units)) * rng.uniform(0.1, 3, units)
    return parts.T @ parts, parts.T @ parts.sum(1)


@pytest.mark.parametrize("seed", range(3))
def test_greedy_removes_what_changes_the_sum_least(seed) -> None:
    gram, product = _columns(np.random.default_rng(seed), 8)
    kept = greedy(gram, product, 7)
    assert set(range(8)) - set(kept) == {int(np.argmin(np.diag(gram)))}

    def error(gone: tuple[int, ...]) -> float:
        return float(gram[np.ix_(gone, gone)].sum())

    gone = tuple(sorted(set(range(8)) - set(greedy(gram, product, 5))))
    errors = sorted(error(one) for one in itertools.combinations(range(8), 3))
    assert error(gone) <= errors[len(errors) // 10]  # greedy is not optimal, but never far


@pytest.mark.parametrize("seed", range(3))
def test_lasso_keeps_what_matters_and_drops_what_another_unit_says(seed) -> None:
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(300, 6))
    parts[:, 4] *= 0.01  # hardly heard
    parts[:, 5] = parts[:, 0] * 0.3  # an echo
    gram, product = parts.T @ parts, parts.T @ parts.sum(1)
    assert sorted(lasso(gram, product, 4)) == [0, 1, 2, 3]
    assert len(set(lasso(gram, product, 2))) == 2


@pytest.mark.parametrize("method", ["channel_lasso", "thinet"])
def test_reconstruction_beats_the_plain_cut(method, network, digits) -> None:
    settings = {"macs": 0.6, "data": digits.batches, "repair": "none", "progress": False}
    rebuilt = lcprune.prune(network.model, digits.example, method=method, **settings)
    plain = lcprune.prune(network.model, digits.example, method="uniform", **settings)
    with torch.no_grad():
        wanted = network.model(digits.images)
        outputs = [result.model(digits.images) for result in (rebuilt, plain)]
    error = [float((output - wanted).square().mean()) for output in outputs]
    assert error[0] < 0.5 * error[1]


class _ByName(nn.Module):
    """Layers that are given what they read by name, or by place."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 3)
        self.named = named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.named:
            return self.last(self.second(self.first(x).relu()).relu().mean((2, 3)))
        return self.last(input=self.second(input=self.first(input=x).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("method", ["channel_lasso", "thinet"])
def test_reconstruction_hears_layers_that_are_given_inputs_by_name(method) -> None:
    torch.manual_seed(0)
    model, images = _ByName(named=False).eval(), torch.randn(32, 1, 8, 8)
    found = []
    for model.named in (False, True):
        chosen = lcprune.methods.make(method, {"images": 32, "points": 4})
        found.append(lcprune.prune(model, images[:1], macs=0.5, method=chosen, data=[images], progress=False))
    assert found[0].plan.kept == found[1].plan.kept
    with torch.no_grad():
        assert torch.equal(*(result.model(images) for result in found))


def test_weights_of_a_cut_network_go_back_to_their_places(network) -> None:
    graph = network.graph
    rng = np.random.default_rng(0)
    kept = [np.sort(rng.permutation(g.size)[: max(1, g.size // 2)]) for g in graph.groups]
    plan = graph.plan(kept)
    smaller = plan.apply(graph.model)
    for tensor in smaller.state_dict().values():
        tensor.add_(1)
    model = copy.deepcopy(graph.model)
    put_back(model, smaller, plan)
    again = plan.apply(model).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in smaller.state_dict().items())
    untouched = sum(int((model.state_dict()[n] == v).sum()) for n, v in graph.model.state_dict().items())
    assert untouched == sum(v.numel() for v in model.state_dict().values()) - sum(v.numel() for v in again.values())


def test_zeroed_units_are_silent(network, digits) -> None:
    graph = network.graph
    kept = [np.flatnonzero(np.arange(group.size) % 3) for group in graph.groups]
    model = copy.deepcopy(graph.model)
    zero_units(graph, model, kept)
    torch.testing.assert_close(
        model(digits.images), graph.plan(kept).apply(graph.model)(digits.images), rtol=1e-4, atol=1e-4
    )


def test_the_agent_learns_which_action_pays(monkeypatch) -> None:
    monkeypatch.setattr(ddpg, "_HIDDEN", 32)
    monkeypatch.setattr(ddpg, "_ACTOR_RATE", 1e-3)
    agent = Agent(features=2, memory=200, seed=0)
    states = [np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    for number in range(250):
        actions = [agent.explore() if number < 60 else agent.act(state, 0.2) for state in states]
        reward = -abs(actions[0] - 0.2) - abs(actions[1] - 0.8)
        episode = [
            Transition(states[0], actions[0], states[1], False),
            Transition(states[1], actions[1], states[1], True),
        ]
        agent.remember(episode, reward)
        if number >= 60:
            agent.update()
            agent.update()
    assert agent.act(states[0], 0) < 0.4 and agent.act(states[1], 0) > 0.6


def test_amc_only_proposes_networks_within_the_limit_and_they_differ(plain, digits) -> None:
    result = lcprune.prune(
        plain.graph,
        macs=0.4,
        method=lcprune.methods.make("amc", {"episodes": 24, "warmup": 12}),
        data=digits.batches,
        progress=False,
    )
    assert all(record.macs <= 0.4 * plain.graph.macs for record in result.history)
    assert len({tuple(record.counts) for record in result.history}) > 12
    best = min(result.history, key=lambda record: record.loss)
    assert [len(units) for units in result.plan.kept.values()] == best.counts
    assert Amc().episodes == 400 and Amc().warmup == 100


def test_morphnet_says_what_its_search_for_lambda_took(plain, digits) -> None:
    result = lcprune.prune(
        plain.graph,
        macs=0.5,
        method=lcprune.methods.make("morphnet", {"epochs": 2, "trainings": 4, "batch_size": 16}),
        data=digits.batches,
        progress=False,
    )
    tried = result.plan.meta["tried"]
    assert result.plan.meta["trainings"] == len(tried) <= 4
    by_strength = sorted(tried, key=lambda one: one["strength"])
    assert by_strength[0]["cost"] > by_strength[-1]["cost"]  # a stronger lambda, a smaller network


def test_methods_that_train_use_the_whole_set_behind_the_images(plain) -> None:
    digits = data.load("digits")
    few = digits.batches("train", 64, limit=64, seed=0)
    task = Task(plain.graph, Limits(macs=0.5), samples=[(x[0], y[0]) for x, y in few], dataset=few.dataset)
    feed = TaskFeed(task, 128)
    assert feed.images == len(digits.train)
    first, again, other = (next(iter(feed.epoch(number)))[0] for number in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    alone = TaskFeed(Task(plain.graph, Limits(macs=0.5), samples=task.samples), 128)
    assert alone.images == 1 and alone.batch == 1


def test_groups_without_a_norm_stay_whole_for_methods_that_shrink_norms(digits) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.second, self.last = nn.Conv2d(8, 6, 3, padding=1), nn.Linear(6, 10)

        def forward(self, x):
            return self.last(torch.relu(self.second(torch.relu(self.norm(self.first(x))))).mean((2, 3)))

    torch.manual_seed(0)
    settings = {"macs": 0.6, "data": digits.batches, "progress": False}
    for method in ("slimming", "morphnet"):
        result = lcprune.prune(
            Half().eval(), digits.example, method=lcprune.methods.make(method, {"epochs": 1}), **settings
        )
        assert len(result.plan.kept["second"]) == 6 and len(result.plan.kept["first"]) < 8
    bare = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
    with pytest.raises(lcprune.MetricError, match="batch-norm scales"):
        lcprune.prune(bare, digits.example, method="slimming", **settings)


@pytest.mark.parametrize("method", ["single_filter", "single_filter_fisher", "slimming", "soft", "morphnet"])
def test_a_training_that_diverges_says_so(method, plain, digits) -> None:
    options = {"tune_steps": 3, "step": 12} if method.startswith("single") else {"epochs": 3}
    settings = {"macs": 0.5, "data": digits.batches, "progress": False}
    with pytest.raises(lcprune.errors.TuneError, match="lower lr"):
        lcprune.prune(
            plain.model, digits.example, method=lcprune.methods.make(method, {**options, "lr": 1e30}), **settings
        )


def test_wrong_values_are_named() -> None:
    for method, options in {
        "soft": {"clip": 0.0},
        "slimming": {"strength": -1.0},
        "morphnet": {"tolerance": 2.0},
        "amc": {"reward": "speed"},
        "single_filter": {"step": 0},
        "thinet": {"points": 0},
        "l1_schedule": {"rates": (0.0,)},
    }.items():
        with pytest.raises(lcprune.ConfigError, match=next(iter(options))):
            lcprune.methods.make(method, options)
    assert TrainingOptions().travel(100) > 0
