"""Preparing candidates before they are judged: optional, and without a trace on the network itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from lcprune.evaluate import collate, draw, make_evaluator, recalibrate, short_tuning
from lcprune.search import Search


@pytest.fixture
def halves(plain):
    return [np.arange(0, group.size, 2) for group in plain.graph.groups]


def test_recalibration_gives_the_statistics_of_the_images(plain, digits) -> None:
    model = copy.deepcopy(plain.model)
    batch = collate(draw(digits.train, 200, seed=0), 200)
    seen = []
    model[0][1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    recalibrate(model, batch)
    assert torch.allclose(model[0][1].running_mean, seen[0].mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model[0][1].running_var, seen[0].var((0, 2, 3)), rtol=1e-4)
    assert not any(module.training for module in model.modules())
    assert model[0][1].momentum == plain.model[0][1].momentum


@pytest.mark.parametrize("settings", [{"recalibrate": True}, {"tune_steps": 6, "tune_lr": 0.05}])
def test_prepared_candidates_lose_less_and_the_network_stays(settings, plain, digits, halves) -> None:
    samples = draw(digits.train, 256, seed=0)
    before = copy.deepcopy(plain.model.state_dict())
    bare = make_evaluator(plain.graph, samples, cross_entropy, Search()).loss(halves)
    prepared = make_evaluator(plain.graph, samples, cross_entropy, Search(**settings))
    assert prepared.loss(halves) < bare
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    again = make_evaluator(plain.graph, samples, cross_entropy, Search(**settings))
    assert again.loss(halves) == prepared.loss(halves)


def test_a_users_own_preparation_is_called_with_the_smaller_network(plain, digits, halves) -> None:
    widths = []

    def mine(model, batches) -> None:
        widths.append(model[0][0].weight.shape[0])
        short_tuning(model, batches, cross_entropy, steps=1, lr=0.01)

    evaluator = make_evaluator(plain.graph, draw(digits.train, 64, seed=0), cross_entropy, Search(prepare=mine))
    evaluator.loss(halves)
    assert widths == [4]
