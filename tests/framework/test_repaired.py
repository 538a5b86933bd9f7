"""Networks that pruning gives back are repaired, wherever there is data."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import repairs
from lcprune.batches import draw
from lcprune.search import Search


def same(first, second) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def loss(model, batches) -> float:
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(model.eval()(x), y) for x, y in batches]
    return float(sum(losses)) / len(losses)


def test_a_cut_network_is_repaired_where_there_is_data(plain, digits) -> None:
    settings = {"macs": 0.4, "method": "naive", "progress": False}
    cut = lcprune.prune(plain.graph, **settings)
    assert cut.repair is None and same(cut.model, cut.plan.apply(plain.model))
    result = lcprune.prune(plain.graph, data=digits.train, **settings)
    assert result.plan.kept == cut.plan.kept and result.repair.how in repairs.HOW
    assert result.plan.meta["repair"] == result.repair.to_json()
    assert result.repair.distances[result.repair.how] < result.repair.distances["none"]
    assert loss(result.model, digits.held_out) < loss(cut.model, digits.held_out)
    assert lcprune.verify(
        repairs.expand(plain.model, result.plan, result.model), result.plan, digits.example, result.model
    )
    assert same(lcprune.prune(plain.graph, data=digits.train, repair="none", **settings).model, cut.model)


def test_labels_are_not_looked_at(plain, digits) -> None:
    settings = {"macs": 0.4, "method": "naive", "progress": False, "repair": "stand-ins"}
    labelled = lcprune.prune(plain.graph, data=digits.train, **settings)
    alone = lcprune.prune(plain.graph, data=[inputs for inputs, _ in digits.train], **settings)
    assert labelled.repair.how == "stand-ins" and same(labelled.model, alone.model)


@pytest.mark.parametrize("how", ["statistics", "stand-ins", "refit"])
def test_a_repair_that_is_named_is_the_one_that_is_done(plain, digits, how) -> None:
    result = lcprune.prune(plain.graph, macs=0.5, method="uniform", data=digits.train, repair=how, progress=False)
    assert set(result.repair.distances) == {"none", how}


def test_networks_of_a_frontier_are_repaired(plain, digits) -> None:
    frontier = lcprune.pareto(
        plain.graph,
        data=lcprune.Evaluation(digits.train, images=200),
        macs=[0.5, 0.3],
        methods=[lcprune.LcP(Search(pool=4, iterations=8)), "naive"],
        progress=False,
    )
    for point in frontier.points:
        assert point.repair is not None and point.plan.meta["repair"] == point.repair.to_json()
        assert point.repaired_loss == pytest.approx(loss_on(point, digits), rel=1e-4)
    assert sum(point.repaired_loss < point.loss for point in frontier.points) >= 3


def loss_on(point, digits) -> float:
    drawn = draw(digits.train, 200, 0)
    inputs, targets = (torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*drawn, strict=True))
    return loss(point.model, [(inputs, targets)])


def test_every_round_of_algorithm_1_is_repaired_before_it_is_tuned(plain, digits, monkeypatch) -> None:
    seen = []

    def tune(model) -> None:
        seen.append(loss(model, digits.held_out))

    settings = {"macs": 0.3, "steps": 2, "method": "naive", "data": digits.train, "progress": False}
    result = lcprune.prune_in_steps(plain.graph, tune=tune, **settings)
    assert result.repair is not None and [step.plan.meta["repair"]["how"] for step in result.steps] != ["none", "none"]
    lcprune.prune_in_steps(plain.graph, tune=tune, repair="none", **settings)
    assert seen[0] < seen[2] and seen[1] < seen[3]


def test_the_way_out_is_named(plain, digits) -> None:
    inputs = [images for images, _ in digits.train]
    for needs in ({"metric": "taylor"}, {"method": "slimming"}, {"data": lcprune.Evaluation(inputs, cross_entropy)}):
        with pytest.raises(lcprune.DataError, match="inputs alone are not enough"):
            lcprune.prune(plain.graph, **{"macs": 0.5, "data": inputs, "progress": False, **needs})
    with pytest.raises(lcprune.ConfigError, match=r"repair='magic' is not known; choose one of 'auto', 'none'"):
        lcprune.prune(plain.graph, macs=0.5, data=digits.train, repair="magic")


def test_the_loss_says_whether_outputs_are_scores_of_classes(plain, digits, monkeypatch) -> None:
    told: list[bool] = []

    def listen(whole, plan, small, samples, how, **settings):
        told.append(settings["classes"])
        return small, repairs.Repair("none")

    monkeypatch.setattr("lcprune.outcome.mend", listen)
    inputs, own = [images for images, _ in digits.train], lambda output, target: cross_entropy(output, target)
    losses = [None, cross_entropy, torch.nn.CrossEntropyLoss(), "divergence", "distance", own]
    for data in [inputs, *(lcprune.Evaluation(digits.train, loss_fn) for loss_fn in losses)]:
        lcprune.prune(plain.graph, macs=0.5, method="naive", data=data, progress=False)
    assert told == [False, True, True, True, True, False, False]


@pytest.mark.parametrize("loss_fn", [None, "distance"])
def test_inputs_alone_are_enough_to_search_by(loss_fn, plain, digits) -> None:
    search = lcprune.LcP(lcprune.Search(pool=6, iterations=6, sample=3))
    data = digits.train if loss_fn else [images for images, _ in digits.train]
    result = lcprune.prune(
        plain.graph, macs=0.4, method=search, data=lcprune.Evaluation(data, loss_fn, images=200), progress=False
    )
    # The loss of a candidate is its distance from the whole network, whose own is nothing.
    whole, images = copy.deepcopy(plain.model).eval(), torch.cat([inputs for inputs, _ in digits.train])
    with torch.no_grad():
        answers = [model(images) for model in (whole, result.model)]
    apart = float((answers[1] - answers[0]).square().sum() / (answers[0] - answers[0].mean(0)).square().sum())
    assert 0 < apart < 0.5
    assert 0 < result.plan.meta["difference"] <= result.plan.meta["naive_difference"]
    if loss_fn is None:
        frontier = lcprune.pareto(
            plain.graph, macs=["60%", "30%"], methods=[search, "naive"], data=data, learn="sweep", progress=False
        )
        assert all(point.repaired_loss is not None for point in frontier.points)


def test_a_repaired_network_that_is_wrong_is_not_returned(plain, digits, monkeypatch) -> None:
    def spoil(whole, plan, small, samples, how, **settings):
        broken = plan.apply(whole)
        for module in broken.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eps = 10.0
        return broken, repairs.Repair("refit", {"none": 1.0, "refit": 0.5})

    monkeypatch.setattr("lcprune.outcome.mend", spoil)
    with pytest.raises(lcprune.PlanError) as caught:
        lcprune.prune(plain.graph, macs=0.5, method="naive", data=digits.train, progress=False)
    assert dataclasses.is_dataclass(caught.value.result) and caught.value.result.plan.macs <= 0.5 * plain.graph.macs
