"""Layers that a repair cannot help are left as cut and named, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dependent import CASES, images, pairs, same
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import lcprune
from lcprune.repairs import mend
from lcprune.repairs.wiring import look


class _Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean((1, 2, 3), True)) / self.weight.std((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class _StandardisedInside(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight / weight.norm(), bias)


class _OwnBias(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.weight, 0.1 * self.bias)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.one(x) + self.two(2 * x)


class _Adapted(nn.Linear):
    """A layer with layers of its own, as adapters of low rank are."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.down, self.up = nn.Linear(8, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


def _old_weight_norm(layer: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (lambda: weight_norm(nn.Conv2d(8, 4, 3)), "computed"),
        (lambda: weight_norm(nn.ConvTranspose2d(8, 4, 3)), "computed"),
        (lambda: _old_weight_norm(nn.Conv2d(8, 4, 3)), "computed"),
        (lambda: _Standardised(8, 4, 3), "_Standardised does more"),
        (lambda: _StandardisedInside(8, 4, 3), "_StandardisedInside does more"),
        (lambda: _OwnBias(8, 4, 3), "_OwnBias does more"),
    ],
    ids=["weight norm", "weight norm, transposed", "old weight norm", "standardised", "inside", "own bias"],
)
@pytest.mark.parametrize("how", ["auto", "stand-ins", "refit"])
def test_layers_that_cannot_be_repaired_are_named(reader: Any, why: str, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), reader())
    inputs = images(3, 7, 7)
    plan = lcprune.trace(model, inputs[:2]).plan({"0": range(5)})
    cut = plan.apply(model)
    small, done = mend(model, plan, cut, pairs(inputs), how, progress=False)
    assert list(done.left) == ["2"] and why in done.left["2"]
    assert same(small, cut)


@pytest.mark.parametrize("how", ["auto", "stand-ins", "refit"])
def test_of_layers_inside_of_a_layer_the_outer_one_is_named(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), _Adapted())
    inputs = images(3)
    plan = lcprune.trace(model, inputs[:2]).plan({"0": range(5)})
    _, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
    assert list(done.left) == ["2"] and "_Adapted does more" in done.left["2"]


def test_layers_that_share_a_weight_are_named() -> None:
    torch.manual_seed(0)
    model = _Tied()
    inputs = images(3, 7, 7)
    plan = lcprune.trace(model, inputs[:2]).plan({"first": range(5)})
    small, done = mend(model, plan, plan.apply(model), pairs(inputs), progress=False)
    assert list(done.left) == ["one", "two"]
    assert all("another layer's" in why for why in done.left.values())
    assert small.two.weight is small.one.weight


def test_a_forward_that_pads_for_itself_is_repaired() -> None:
    case = CASES["own_padding"]()
    plan = case.plan
    sites = {site.name: site for site in look(case.model, plan, case.images[:2]).sites}
    assert sites["1"].cut and not sites["1"].patched
    _, done = mend(case.model, plan, plan.apply(case.model), pairs(case.images), "stand-ins", progress=False)
    assert done.how == "stand-ins" and not done.left
