"""Preparing candidates before they are judged: optional, and without a trace on the network itself."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.batches import collate, draw
from lcprune.compensations import LEARN
from lcprune.evaluate import Evaluation, guessing_loss, make_evaluator, short_tuning
from lcprune.repairs.statistics import renew_statistics
from searching import searching, searching_many

SHORT = {"pool": 3, "iterations": 2, "sample": 2, "images": 256, "recalibrate": "auto"}


@pytest.fixture
def halves(plain):
    return [np.arange(0, group.size, 2) for group in plain.graph.groups]


def test_recalibration_gives_the_statistics_of_the_images(plain, digits) -> None:
    model = copy.deepcopy(plain.model)
    batch = collate(draw(digits.train, 200, seed=0), 200)
    seen = []
    model[0][1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    renew_statistics(model, batch)
    assert torch.allclose(model[0][1].running_mean, seen[0].mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model[0][1].running_var, seen[0].var((0, 2, 3)), rtol=1e-4)
    assert not any(module.training for module in model.modules())
    assert model[0][1].momentum == plain.model[0][1].momentum


@pytest.mark.parametrize("settings", [{"recalibrate": True}, {"tune_steps": 6, "tune_lr": 0.05}])
def test_prepared_candidates_lose_less_and_the_network_stays(settings, plain, digits, halves) -> None:
    samples = draw(digits.train, 256, seed=0)
    before = copy.deepcopy(plain.model.state_dict())
    bare = make_evaluator(plain.graph, samples, Evaluation()).loss(halves)
    prepared = make_evaluator(plain.graph, samples, Evaluation(**settings))
    assert prepared.loss(halves) < bare
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    again = make_evaluator(plain.graph, samples, Evaluation(**settings))
    assert again.loss(halves) == prepared.loss(halves)


def test_a_users_own_preparation_is_called_with_the_smaller_network(plain, digits, halves) -> None:
    widths = []

    def mine(model, batches) -> None:
        widths.append(model[0][0].weight.shape[0])
        short_tuning(model, batches, cross_entropy, steps=1, lr=0.01)

    evaluator = make_evaluator(plain.graph, draw(digits.train, 64, seed=0), Evaluation(prepare=mine))
    evaluator.loss(halves)
    assert widths == [4]


def test_guessing_is_giving_every_image_the_same_answer(plain, digits) -> None:
    batches = collate(draw(digits.train, 200, seed=0), 64)
    with torch.no_grad():
        mean = torch.cat([plain.model(batch.inputs) for batch in batches]).mean(0)
    labels = torch.cat([batch.target for batch in batches])
    assert float(cross_entropy(mean.expand(len(labels), -1), labels)) > np.log(10)
    assert guessing_loss(plain.model, batches, cross_entropy) == pytest.approx(np.log(10), rel=1e-5)
    # Of two images with the same answer the mean is that answer, which is right.
    sure = [replace(batch, target=torch.full_like(batch.target, 3)) for batch in batches]
    right = torch.nn.functional.one_hot(torch.tensor([3]), 10).float() * 9
    expected = float(cross_entropy(right, torch.tensor([3])))
    assert guessing_loss(lambda x: right.expand(len(x), -1), sure, cross_entropy) == pytest.approx(expected, rel=1e-4)
    assert guessing_loss(lambda x: [x], batches, cross_entropy) is None
    assert guessing_loss(lambda x: x.mean(), batches, lambda output, target: output) is None
    assert guessing_loss(lambda x: right.log().expand(len(x), -1), batches, cross_entropy) == pytest.approx(np.log(10))
    soft = [replace(batch, target=torch.nn.functional.one_hot(batch.target, 10).double()) for batch in batches]
    double = copy.deepcopy(plain.model).double()
    guess = guessing_loss(lambda x: double(x.double()), soft, cross_entropy)
    assert guess == pytest.approx(np.log(10), rel=1e-5)


@pytest.mark.parametrize(("macs", "anew"), [(0.95, False), (0.1, True)])
def test_statistics_are_new_where_naive_pruning_is_no_better_than_guessing(macs, anew, plain, digits) -> None:
    def pruned(search):
        return lcprune.prune(
            plain.model, digits.example, macs=macs, **searching(digits.train, **search), progress=False
        )

    plain.model.train()
    before = copy.deepcopy(plain.model.state_dict())
    result = pruned(SHORT)
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    plain.model.eval()
    batches = collate(draw(digits.train, 256, seed=0), 64)
    naive = lcprune.prune(plain.model, digits.example, macs=macs, method="naive", progress=False).model.eval()
    guess = guessing_loss(plain.model, batches, cross_entropy)
    with torch.no_grad():
        left, whole = (
            guess - sum(float(cross_entropy(model(b.inputs), b.target)) * b.size for b in batches) / 256
            for model in (naive, plain.model)
        )
    assert (left < 0.1 * whole) is anew  # else this tests nothing
    assert result.plan.meta["recalibrate"] is anew
    plainly = pruned({**SHORT, "recalibrate": anew})
    assert [record.difference for record in result.history] == [record.difference for record in plainly.history]


def test_each_limit_of_a_frontier_decides_for_itself(plain, digits, tmp_path) -> None:
    settings = {"macs": [0.95, 0.1], **searching_many(digits.train, **{**SHORT, "pool": 4, "iterations": 8})}
    found = lcprune.pareto(plain.model, digits.example, run=tmp_path, progress=False, **settings)
    texts = {limit: (tmp_path / f"search-{limit:g}.jsonl").read_text() for limit in (0.95, 0.1)}
    assert '"evaluation.recalibrate": false' in texts[0.95] and '"evaluation.recalibrate": true' in texts[0.1]
    assert [point.plan.meta["recalibrate"] for point in found.curve("lcp")] == [False, True]
    again = lcprune.pareto(
        plain.model, digits.example, run=lcprune.Job(tmp_path, resume=True), progress=False, **settings
    )
    assert [point.plan.kept for point in again.points] == [point.plan.kept for point in found.points]
    assert [point.plan.meta["recalibrate"] for point in again.curve("lcp")] == [False, True]


@pytest.mark.parametrize("learn", LEARN)
def test_a_frontier_guesses_once(learn, plain, digits, monkeypatch) -> None:
    guesses = []

    def guess(*arguments):
        guesses.append(guessing_loss(*arguments))
        return guesses[-1]

    monkeypatch.setattr(lcprune.task, "guessing_loss", guess)
    settings = {"macs": [0.95, 0.5, 0.1], "learn": learn, "progress": False}
    lcprune.pareto(plain.model, digits.example, **searching_many(digits.train, **SHORT), **settings)
    assert len(guesses) == 1
    lcprune.pareto(
        plain.model, digits.example, **searching_many(digits.train, **{**SHORT, "recalibrate": False}), **settings
    )
    assert len(guesses) == 1


def test_the_log_says_how_candidates_are_judged(plain, digits, caplog) -> None:
    caplog.set_level("INFO", logger="lcprune")
    settings = {"macs": [0.95, 0.1], **searching_many(digits.train, **{**SHORT, "pool": 4, "iterations": 8})}
    lcprune.pareto(plain.model, digits.example, learn="each", **settings)
    said = [line for line in caplog.messages if line.startswith(("candidates ", "search"))]
    assert said[0] == "candidates are judged as they are cut: naive pruning is better than guessing here"
    assert said[1].startswith("search: 12 steps")
    assert said[2] == "candidates get new batch-norm statistics: naive pruning is no better than guessing here"
    assert said[3].startswith("search, new statistics: 12 steps")


def test_a_small_last_batch_does_not_count(digits) -> None:
    torch.manual_seed(0)
    # After pooling, one image has one value per channel: no variance.
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))
    )
    for batch_size, images in ((128, 129), (2, 9)):
        whole, batches = copy.deepcopy(model), collate(draw(digits.train, images, seed=0), batch_size)
        assert batches[-1].size == 1
        renew_statistics(whole, batches)
        expected = copy.deepcopy(model)
        renew_statistics(expected, batches[:-1])
        assert torch.equal(whole[2].running_var, expected[2].running_var)
    search = {**SHORT, "images": 129, "batch_size": 128, "recalibrate": True}
    lcprune.prune(model, digits.example, macs=0.5, **searching(digits.train, **search), progress=False)
    one = lcprune.prune(
        model, digits.example, macs=0.2, **searching(digits.train, **{**SHORT, "images": 1}), progress=False
    )
    assert one.plan.meta["recalibrate"] is False


def test_what_the_user_prepares_is_not_recalibrated_too(plain, digits) -> None:
    search = {**SHORT, "tune_steps": 1}
    result = lcprune.prune(plain.model, digits.example, macs=0.1, **searching(digits.train, **search), progress=False)
    assert result.plan.meta["recalibrate"] is False


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(lcprune.LcpruneError, match="recalibrate='always'"):
        Evaluation(recalibrate="always")
    with pytest.raises(lcprune.LcpruneError, match="'fp32', 'tf32', 'bf16'"):
        Evaluation(precision="fp8")
    with pytest.raises(lcprune.LcpruneError, match=r"images=2\.5"):
        Evaluation(images=2.5)
