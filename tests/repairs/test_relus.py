"""Behind a ReLU only what it lets through counts: who is known to be behind one, and what that gains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dependent import pairs, settled
from torch import Tensor, nn
from torch.nn import functional

import lcprune
from lcprune.graph.tail import Bounds
from lcprune.plan import Plan
from lcprune.repairs import mend, refit
from lcprune.repairs.distance import Distance
from lcprune.repairs.wiring import Survey

CHANNELS = 6
RELU, RELU6 = (0.0, math.inf), (0.0, 6.0)


class Layers(nn.Module):
    """Two layers with batch norms, and what a test does with what they give."""

    def __init__(self, run: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.bn1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.second, self.bn2 = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)

    def one(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn1(self.first(x))
        return found

    def two(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn2(self.second(x))
        return found


def _in_place(net: Layers, x: Tensor) -> Tensor:
    inner = net.one(x)
    inner += x
    return inner.relu_()


def _read_before(net: Layers, x: Tensor) -> Tensor:
    inner = net.one(x)
    return inner.mean() + inner.relu_()


def _read_before_the_sum(net: Layers, x: Tensor) -> Tensor:
    inner = net.one(x)
    return inner.mean() + functional.relu(inner + x)


def _sum_read_twice(net: Layers, x: Tensor) -> Tensor:
    total = net.one(x) + x
    return total.mean() + functional.relu(total)


RELUS: dict[str, tuple[Callable[[Layers, Tensor], Tensor], Bounds | None]] = {
    "behind a norm": (lambda net, x: functional.relu(net.one(x)), RELU),
    "behind a layer": (lambda net, x: functional.relu6(net.first(x)), RELU6),
    "behind a sum": (lambda net, x: functional.relu(x + net.one(x)), RELU),
    "in place": (_in_place, RELU),
    "a clamp": (lambda net, x: net.one(x).clamp(min=0.5), (0.5, math.inf)),
    "a clamp from above": (lambda net, x: net.one(x).clamp(max=2), (-math.inf, 2.0)),
    "another activation": (lambda net, x: functional.silu(net.one(x)), None),
    "none": (lambda net, x: net.one(x), None),
    "read before": (_read_before, None),
    "read before the sum": (_read_before_the_sum, None),
    "a sum that is read twice": (_sum_read_twice, None),
    "behind a sum with a factor": (lambda net, x: functional.relu(torch.add(net.one(x), x, alpha=2)), None),
    "behind a sum with what comes later": (lambda net, x: functional.relu(net.one(x) + net.two(x)), None),
}


@pytest.mark.parametrize("run, bounds", RELUS.values(), ids=RELUS)
def test_what_a_relu_lets_through_is_known(run: Callable[[Layers, Tensor], Tensor], bounds: Bounds | None) -> None:
    survey = Survey(Layers(run).eval(), torch.randn(2, CHANNELS, 5, 5))
    assert survey.watch.bounds("first") == bounds


def test_the_later_of_two_layers_has_the_relu_of_their_sum() -> None:
    survey = Survey(Layers(RELUS["behind a sum with what comes later"][0]).eval(), torch.randn(2, CHANNELS, 5, 5))
    assert survey.watch.bounds("second") == RELU


@pytest.mark.parametrize("bounds", [RELU, RELU6, (-math.inf, 1.0)])
@pytest.mark.parametrize("beside", [False, True])
def test_a_difference_counts_where_the_relu_lets_it_through(bounds: Bounds, beside: bool) -> None:
    torch.manual_seed(0)
    net = Layers(lambda net, x: (net.one(x) + x if beside else net.one(x)).clamp(*bounds))
    settled(net)
    with torch.no_grad():
        net.bn1.weight[2] = 0.0  # whatever the layer gives, nothing comes of it
    x, y = 3 * torch.randn(2, 50, CHANNELS, 5, 5)
    site = Survey(net, x[:2]).wiring(lcprune.trace(net, x[:2]).plan({})).sites[0]
    assert site.name == "first" and site.bounds == bounds
    factor = net.bn1.weight / (net.bn1.running_var + net.bn1.eps).sqrt()
    per = torch.where(factor == 0, 0.0, 1 / factor)[:, None]
    counts = refit.counting(net, site, x.flatten(2) * per if beside else torch.zeros(1))
    assert counts is not None
    behind = net.bn1(y) + x if beside else net.bn1(y)
    through = ((bounds[0] < behind) & (behind < bounds[1])).flatten(2)
    values = y.flatten(2)
    counted = (counts[0] < values) & (values < counts[1])
    rest = [channel for channel in range(CHANNELS) if channel != 2]
    assert torch.equal(through[:, rest], counted[:, rest]) and counted[:, 2].all()
    assert 0.1 < through.float().mean() < 0.9


def _rectified(groups: int = 1) -> tuple[nn.Sequential, Plan, Tensor]:
    """A network that ends in a batch norm and a ReLU, half of its hidden channels, and images."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(CHANNELS, momentum=1.0)
    reader = nn.Conv2d(24, CHANNELS, 3, padding=1, bias=False, groups=groups)
    whole = nn.Sequential(nn.Conv2d(CHANNELS, 24, 3, padding=1), nn.ReLU(), reader, norm, nn.ReLU())
    inputs = functional.avg_pool2d(torch.randn(400, CHANNELS, 18, 18) ** 3, 3, 2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -1.0, 0.7, 0.3, 2.0, -0.5]))
        norm.bias.copy_(torch.full((CHANNELS,), -0.5))  # little is let through
        whole(inputs)  # gives the norm its statistics
    graph = lcprune.trace(whole.eval(), inputs[:2])
    [hidden] = graph.groups
    return whole, graph.plan({hidden.name: range(hidden.size // 2)}), inputs


@pytest.mark.parametrize("groups", [1, 3])
def test_what_a_relu_hides_is_not_fitted(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plan, inputs = _rectified(groups)

    def distance() -> float:
        return mend(whole, plan, plan.apply(whole), pairs(inputs), "refit", progress=False)[1].distances["refit"]

    known = distance()
    monkeypatch.setattr(refit, "ROUNDS", 0)
    assert known < 0.98 * distance()


@pytest.mark.parametrize("end", [nn.ReLU(), nn.SiLU()])
def test_a_norm_before_a_relu_keeps_its_statistics_in_a_refit(end: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plan, inputs = _rectified()
    whole[4] = end
    tried: list[Tensor] = []

    def judged(self: Distance, network: Any) -> float:
        tried.append(network[3].running_var.clone())
        return float(len(tried))

    monkeypatch.setattr(Distance, "__call__", judged)
    mend(whole, plan, plan.apply(whole), pairs(inputs), "refit", progress=False)
    kept = [torch.equal(variance, whole[3].running_var) for variance in tried]
    assert all(kept) == isinstance(end, nn.ReLU)
