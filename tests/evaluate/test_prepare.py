"""Preparing candidates before they are judged: optional, and without a trace on the network itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.batches import collate, draw
from lcprune.evaluate import Evaluation, make_evaluator
from lcprune.repairs.moments import measure_moments
from lcprune.repairs.stand_ins import stand_in
from lcprune.repairs.statistics import Renewal, renew_statistics
from lcprune.repairs.wiring import look
from searching import searching

SHORT = {"pool": 3, "iterations": 2, "sample": 2, "images": 256}


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


@pytest.mark.parametrize("settings", [{}, {"after": "statistics"}])
def test_prepared_candidates_lose_less_and_the_network_stays(settings, plain, digits, halves) -> None:
    samples = draw(digits.train, 256, seed=0)
    before = copy.deepcopy(plain.model.state_dict())
    bare = make_evaluator(plain.graph, samples, Evaluation(after="cut")).loss(halves)
    prepared = make_evaluator(plain.graph, samples, Evaluation(**settings))
    assert prepared.loss(halves) < bare
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    again = make_evaluator(plain.graph, samples, Evaluation(**settings))
    assert again.loss(halves) == prepared.loss(halves)


def test_a_users_own_preparation_is_called_with_the_smaller_network(plain, digits, halves) -> None:
    widths = []

    def mine(model, batches) -> None:
        widths.append(model[0][0].weight.shape[0])
        renew_statistics(model, batches)

    evaluator = make_evaluator(plain.graph, draw(digits.train, 64, seed=0), Evaluation(prepare=mine))
    evaluator.loss(halves)
    assert widths == [4]


@pytest.mark.parametrize("evaluator", ["slice", "zero"])
@pytest.mark.parametrize("after", ["repair", "statistics"])
def test_candidates_are_judged_as_the_networks_that_a_repair_makes(after, evaluator, trained, digits) -> None:
    samples = draw(digits.train, 240, seed=0)
    judge = make_evaluator(trained.graph, samples, Evaluation(after=after, evaluator=evaluator))
    # Those that a repair was fitted to do not judge it.
    first, others = collate(samples, 120)
    fitted, judging = (first, others) if after == "repair" else (first, collate(samples, 240)[0])
    whole = copy.deepcopy(trained.model).eval()
    renewal = Renewal(whole, [collate(samples, 64)[0]])
    rng = np.random.default_rng(5)
    for _ in range(3):
        kept = [np.sort(rng.permutation(g.size)[: rng.integers(1, g.size + 1)]) for g in trained.graph.groups]
        plan = trained.graph.plan(kept)
        small = plan.apply(trained.graph.model).eval()
        if after == "repair":
            wiring = look(whole, plan, fitted.inputs[:2])
            with torch.no_grad():
                stand_in(whole, small, wiring.sites, measure_moments(whole, wiring.sites, [fitted]))
        renewal(small, plan)
        with torch.no_grad():
            expected = float(cross_entropy(small(judging.inputs), judging.target))
        assert judge.loss(kept) == pytest.approx(expected, rel=2e-3)
    assert judge.work.sliced == (3 if evaluator == "slice" else 0)


def test_silence_is_repaired_in_double_precision_too() -> None:
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    images = torch.randn(40, 3, 8, 8, dtype=torch.float64)
    graph = lcprune.trace(nn.Sequential(*layers).double().eval(), images[:2])
    samples = [(image, torch.tensor(place % 5)) for place, image in enumerate(images)]
    sliced, silenced = (make_evaluator(graph, samples, Evaluation(evaluator=name)) for name in ("slice", "zero"))
    for step in (2, 3):  # the whole weights are not those that the candidate before has left
        kept = [np.arange(0, group.size, step) for group in graph.groups]
        assert silenced.loss(kept) == pytest.approx(sliced.loss(kept), rel=1e-9)
    assert silenced.work.sliced == 0


class _Several(nn.Module):
    """Norms and a layer that run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)
        self.m, self.n = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.m(self.a(x)).relu()
        for _ in range(2):
            x = self.n(self.b(x)).relu()
        return self.c(x.mean((2, 3)))


def _biased() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


@pytest.mark.parametrize("network", [_Several, _biased])
def test_a_candidate_is_judged_alike_whatever_was_judged_before(network) -> None:
    torch.manual_seed(0)
    images, model = torch.randn(80, 3, 8, 8), network().train()
    with torch.no_grad():
        for _ in range(30):
            model(images)
    graph = lcprune.trace(model.eval(), images[:2])
    samples = [(image, torch.tensor(place % 5)) for place, image in enumerate(images)]
    sliced, silenced = (make_evaluator(graph, samples, Evaluation(evaluator=name)) for name in ("slice", "zero"))
    chosen = [[np.arange(start, group.size, 2) for group in graph.groups] for start in (0, 1)]
    for kept in (chosen[0], chosen[1], chosen[0]):
        assert silenced.compute(kept) == pytest.approx(sliced.compute(kept), rel=1e-4)
    assert silenced.exact and silenced.work.sliced == 0


def test_statistics_are_the_old_ones_after_an_error() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    network(torch.randn(30, 1, 2, 2))
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match="more than 1 value"):  # a variance of one image
        renew_statistics(network, collate([(torch.randn(1, 2, 2), torch.tensor(0))], 1))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_few_images_serve_better_than_by_their_own_statistics(trained, digits) -> None:
    """What they have by chance is taken off again."""
    graph, (others,) = trained.graph, collate(draw(digits.train, 1000, seed=1), 1000)
    plan = graph.plan([np.arange(max(1, group.size // 8), group.size) for group in graph.groups])
    losses: dict[str, list[float]] = {"own": [], "renewed": []}
    for seed in range(6):
        (few,) = collate(draw(digits.train, 12, seed=seed), 12)
        own, renewed = plan.apply(graph.model).eval(), plan.apply(graph.model).eval()
        renew_statistics(own, [few])
        Renewal(copy.deepcopy(graph.model).eval(), [few])(renewed, plan)
        for name, model in (("own", own), ("renewed", renewed)):
            with torch.no_grad():
                losses[name].append(float(cross_entropy(model(others.inputs), others.target)))
    assert np.mean(losses["renewed"]) < np.mean(losses["own"])


@pytest.mark.parametrize("evaluator", ["slice", "zero"])
def test_nothing_removed_nothing_changed(evaluator, plain, digits) -> None:
    samples = draw(digits.train, 256, seed=0)
    for after, judging in (("repair", samples[128:]), ("statistics", samples)):
        (batch,) = collate(judging, 256)
        with torch.no_grad():
            expected = float(cross_entropy(copy.deepcopy(plain.model).eval()(batch.inputs), batch.target))
        judge = make_evaluator(plain.graph, samples, Evaluation(after=after, evaluator=evaluator))
        assert judge.full_loss() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("after", ["repair", "statistics", "cut"])
def test_the_plan_and_the_records_say_how_candidates_were_judged(after, plain, digits, tmp_path) -> None:
    how = searching(digits.train, **{**SHORT, "after": after})
    result = lcprune.prune(plain.model, digits.example, macs=0.5, run=tmp_path, progress=False, **how)
    assert result.plan.meta["after"] == after
    assert f'"evaluation.after": "{after}"' in (tmp_path / "search.jsonl").read_text()


def test_a_search_after_repair_is_no_worse_than_naive_and_uniform_pruning(trained, digits) -> None:
    how = searching(digits.train, pool=4, iterations=2, sample=2, images=256)
    result = lcprune.prune(trained.graph, macs=0.3, progress=False, **how)
    judge = make_evaluator(trained.graph, draw(digits.train, 256, seed=0), Evaluation())
    for method in ("naive", "uniform"):
        kept = lcprune.prune(trained.graph, macs=0.3, method=method, progress=False).plan.kept
        loss = judge.loss({name: np.asarray(units) for name, units in kept.items()})
        # The start may keep a unit or two more than uniform pruning does, within the limit.
        assert result.plan.meta["difference"] <= loss - judge.full_loss() + (0.02 if method == "uniform" else 1e-6)
    assert len({tuple(record.counts) for record in result.history[:3]}) == 3  # naive, uniform, level


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
    search = {**SHORT, "images": 129, "batch_size": 128, "after": "statistics"}
    lcprune.prune(model, digits.example, macs=0.5, **searching(digits.train, **search), progress=False)
    one = lcprune.prune(
        model, digits.example, macs=0.2, **searching(digits.train, **{**SHORT, "images": 1}), progress=False
    )
    assert one.plan.macs <= 0.2 * one.plan.original_macs


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(lcprune.LcpruneError, match="after='always'"):
        Evaluation(after="always")
    with pytest.raises(lcprune.LcpruneError, match="loss_fn='mse' is not known; choose one of 'distance'"):
        Evaluation(loss_fn="mse")
    with pytest.raises(lcprune.LcpruneError, match="'fp32', 'tf32', 'bf16'"):
        Evaluation(precision="fp8")
    with pytest.raises(lcprune.LcpruneError, match=r"images=2\.5"):
        Evaluation(images=2.5)
