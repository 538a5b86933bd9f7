"""Networks that choose by values what a layer reads, as detectors and mixtures of experts do."""

from __future__ import annotations

import pytest
import torch
from dependent import images, pairs
from torch import Tensor, nn

import lcprune
from lcprune.repairs import distil, mend, stages

HOW = ["stand-ins", "refit", "auto", "distil"]


class _Expert(nn.Module):
    """Its body reads the rows whose score is high enough."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.stem, self.score = nn.Linear(8, 16), nn.Linear(16, 1)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        given = torch.relu(self.stem(x))
        scores = self.score(given)[:, 0]
        chosen = (scores - scores.mean() > self.least).nonzero()[:, 0]
        return x.new_zeros(len(x), 3).index_add(0, chosen, self.body(given[chosen]))


def _case(least: float) -> tuple[_Expert, lcprune.Plan, Tensor]:
    torch.manual_seed(0)
    model, inputs = _Expert(-1e9).eval(), images(8, count=60)
    graph = lcprune.trace(model, inputs)
    model.least = least
    return model, graph.plan([range(group.size // 2) for group in graph.groups]), inputs


@pytest.mark.parametrize("how", HOW)
def test_layers_that_nothing_reaches_are_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "STEPS", 5)
    model, plan, inputs = _case(1e9)
    _, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
    assert set(done.left) == {"body.0", "body.3"}
    assert all("nothing of the first images" in why for why in done.left.values())


class _Detector(nn.Module):
    """Large maps first."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3))
        self.expert = _Expert(least)

    def forward(self, x: Tensor) -> Tensor:
        return self.expert(self.backbone(x).mean((2, 3)))


def test_a_stage_may_begin_before_a_layer_that_nothing_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_MORE", 0)  # another stage wherever one may begin
    torch.manual_seed(0)
    model, inputs = _Detector(-1e9).eval(), images(3, 10, 10, count=40)
    graph = lcprune.trace(model, inputs)
    model.expert.least = 1e9
    plan = graph.plan([range(group.size // 2) for group in graph.groups])
    _, done = mend(model, plan, plan.apply(model), pairs(inputs), "refit", progress=False)
    assert set(done.left) == {"expert.body.0", "expert.body.3"}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("least", [-0.1, 0.0, 0.1])
def test_other_rows_than_in_the_whole_network_are_not_compared(
    how: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil, "STEPS", 5)
    monkeypatch.setattr(distil, "_EVERY", 1)
    model, plan, inputs = _case(least)
    small, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
    assert all(bool(tensor.isfinite().all()) for tensor in small.state_dict().values())
    assert done.distances[done.how] <= done.distances["none"]
