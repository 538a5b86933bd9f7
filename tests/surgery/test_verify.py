"""`verify` must see a wrong network, whatever is wrong with it, and change nothing."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from selections import pruned, select, traced
from torch import Tensor, nn
from zoo import ZOO

import lcprune
from lcprune.surgery import AttributeChange


def _columns_swapped(model: nn.Module) -> None:
    model.block2[0].weight.copy_(model.block2[0].weight.flip(1))


def _rows_swapped(model: nn.Module) -> None:
    model.block1[0].weight.copy_(model.block1[0].weight.flip(0))


def _bias_forgotten(model: nn.Module) -> None:
    model.stem.bias.zero_()


def _statistics_of_other_channels(model: nn.Module) -> None:
    model.bn.running_mean.copy_(model.bn.running_mean.flip(0))


def _one_weight_nudged(model: nn.Module) -> None:
    model.fc.weight[0, 0] += 1e-3


@pytest.mark.parametrize(
    "damage",
    [_columns_swapped, _rows_swapped, _bias_forgotten, _statistics_of_other_channels, _one_weight_nudged],
)
def test_wrong_networks_are_seen(damage: Callable[[nn.Module], None]) -> None:
    model, inputs, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    wrong = plan.apply(model)
    assert lcprune.verify(model, plan, inputs, pruned=wrong).ok
    with torch.no_grad():
        damage(wrong)
    verification = lcprune.verify(model, plan, inputs, pruned=wrong)
    assert not verification.ok and not verification
    assert verification.max_error > 1e-6
    assert "WRONG" in str(verification)


def test_nan_is_not_agreement() -> None:
    model, inputs, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.fc.bias.fill_(float("nan"))
    assert not lcprune.verify(model, plan, inputs, pruned=wrong).ok


def test_wrong_networks_are_seen_behind_normalisation_over_channels() -> None:
    """Removal and silencing differ there by design; mistakes elsewhere must still show."""
    model, inputs, graph = traced("GroupNorm")
    plan = graph.plan(select(graph, "half"))
    verification = lcprune.verify(model, plan, inputs)
    assert verification.ok and verification.mixing
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.norm.bias.copy_(wrong.norm.bias.flip(0))
    assert not lcprune.verify(model, plan, inputs, pruned=wrong).ok


def test_plan_of_another_network_is_refused() -> None:
    _, plan, _ = pruned("PlainConv", "half")
    with pytest.raises(lcprune.PlanError):
        lcprune.verify(ZOO["Residual"].factory(), plan, ZOO["Residual"].inputs())


def test_loaded_plan_verifies(tmp_path: Path) -> None:
    model, inputs, _ = traced("OptionAShortcut")
    _, plan, _ = pruned("OptionAShortcut", "half")
    plan.save(tmp_path / "plan.json")
    assert lcprune.verify(model, lcprune.Plan.load(tmp_path / "plan.json"), inputs).ok


def test_says_which_modules_mix_channels() -> None:
    model, inputs, _ = traced("ConvNeXtBlock")
    _, plan, _ = pruned("ConvNeXtBlock", "half")
    verification = lcprune.verify(model, plan, inputs)
    assert verification.mixing == ("norm",)
    assert "mix" in str(verification)


class Small(nn.Module):
    """Two convolutions with a norm between them, and whatever `forward` does with what they give."""

    def __init__(self, returns: Callable[[Tensor], Any] = lambda y: y, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, 10, 3)
        self.returns = returns

    def inside(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.first(x)))

    def forward(self, x: Tensor) -> Any:
        return self.returns(self.second(self.inside(x)).mean((2, 3)))


def _half(model: nn.Module, x: Tensor) -> tuple[lcprune.ChannelGraph, lcprune.Plan]:
    graph = lcprune.trace(model, x)
    return graph, graph.plan({group.name: range(0, group.size, 2) for group in graph.groups})


def test_example_of_zeros_hides_nothing() -> None:
    model, zeros = Small().eval(), torch.zeros(2, 3, 8, 8)
    model.second.bias = None
    _, plan = _half(model, zeros)
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.second.weight.copy_(wrong.second.weight.flip(1))
    assert lcprune.verify(model, plan, zeros).ok
    assert not lcprune.verify(model, plan, zeros, pruned=wrong).ok


def test_inputs_of_whole_numbers_stay_in_the_range_of_the_example() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.hidden, self.out = nn.Embedding(5, 6), nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.relu(self.hidden(self.table(x))).mean(1))

    model, words = Words(), torch.tensor([[0, 1, 4], [2, 2, 3]])
    _, plan = _half(model, words)
    assert lcprune.verify(model, plan, words).ok


def test_nothing_compared_is_not_ok() -> None:
    model, x = Small(lambda y: y * 0), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    verification = lcprune.verify(model, plan, x)
    assert not verification.ok and verification.compared == 0
    assert "nothing to compare" in str(verification)
    without = Small(lambda y: (y > 0).sum())
    assert not lcprune.verify(without, _half(without, x)[1], x).ok


@dataclass
class Answer:
    logits: Tensor
    also: Any = None


class Slotted:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


HIDDEN: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": Answer,
    "plain object": lambda y: SimpleNamespace(logits=y),
    "slots": Slotted,
    "generator": lambda y: (part for part in (y, y + 1)),
    "deep in a dict": lambda y: {"a": [Answer(y.sum(), {"b": SimpleNamespace(logits=y)})]},
    "distribution": lambda y: torch.distributions.Categorical(logits=y),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_outputs_are_found_wherever_they_hide(kind: str) -> None:
    model, x = Small(HIDDEN[kind]).eval(), torch.randn(2, 3, 8, 8)
    graph, plan = _half(model, x)
    assert "second" in graph.frozen  # ten logits stay ten
    assert lcprune.verify(model, plan, x).ok
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.second.bias[0] += 1e-3
    assert not lcprune.verify(model, plan, x, pruned=wrong).ok


def test_outputs_that_cannot_be_looked_into_are_refused_by_name() -> None:
    with pytest.raises(lcprune.TraceError, match=r"output\['a'\] is a ReferenceType"):
        lcprune.trace(Small(lambda y: {"a": weakref.ref(y)}), torch.randn(2, 3, 8, 8))


def test_nan_in_a_later_output_is_seen() -> None:
    model, x = Small(lambda y: (y, y.exp())).eval(), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    wrong = plan.apply(model)
    wrong.returns = lambda y: (y, y.exp() * float("nan"))
    assert lcprune.verify(model, plan, x).ok
    verification = lcprune.verify(model, plan, x, pruned=wrong)
    assert not verification.ok and verification.max_error == float("inf")


def test_outputs_masked_with_infinity_are_compared_elsewhere() -> None:
    model, x = Small(lambda y: y.masked_fill(torch.arange(10) % 2 == 0, float("-inf"))), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    assert lcprune.verify(model, plan, x).ok
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.second.bias[1] += 1e-3
    assert not lcprune.verify(model, plan, x, pruned=wrong).ok


def test_small_output_beside_a_large_one_is_not_lost() -> None:
    model, x = Small(lambda y: (y * 1e9, y)), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    wrong = plan.apply(model)
    wrong.returns = lambda y: (y * 1e9, y * 1.5)
    assert lcprune.verify(model, plan, x).ok
    assert not lcprune.verify(model, plan, x, pruned=wrong).ok


NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda y: y + torch.randn_like(y),
    "uniform": lambda y: y * torch.rand(y.shape, dtype=y.dtype),
    "dropped": lambda y: F.dropout(y, 0.5, training=True),
    "drawn in place": lambda y: y + torch.empty_like(y).normal_(1.0, 2.0),
    "sampled": lambda y: y * torch.bernoulli(torch.full_like(y, 0.7)),
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise_in_forward_is_the_same_for_both(kind: str) -> None:
    class Noisy(Small):
        def inside(self, x: Tensor) -> Tensor:
            return NOISE[kind](super().inside(x))

    model, x = Noisy(), torch.randn(2, 3, 8, 8)
    state = torch.get_rng_state()
    _, plan = _half(model, x)
    verification = lcprune.verify(model, plan, x)
    assert verification.ok, verification
    assert torch.equal(torch.get_rng_state(), state)  # the caller's own random numbers go on as if nothing was
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.second.weight.copy_(wrong.second.weight.flip(1))
    assert not lcprune.verify(model, plan, x, pruned=wrong).ok


class TwoWidths(nn.Module):
    """`rows` and `cols` must follow a cut, `scale` merely equals them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.cols = self.scale = 8
        self.conv, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).mean((2, 3))
        product = y.unsqueeze(2) * y.unsqueeze(1)
        return self.out(product.view(-1, self.rows * self.cols) * self.scale)


def test_number_that_merely_equals_a_width_stays() -> None:
    model, x = TwoWidths(), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    smaller = plan.apply(model)
    assert smaller.scale == 8
    assert lcprune.verify(model, plan, x).ok


def test_number_changed_by_the_surgery_is_not_taken_for_a_size() -> None:
    """A plan from elsewhere that lets a number follow which the code multiplies with."""
    model, x = TwoWidths(), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    wrong = replace(plan, changes=(*plan.changes, AttributeChange("", "scale", None, 8, 4)))
    assert not lcprune.verify(model, wrong, x).ok
    changed = plan.apply(model)
    changed.scale = 4
    assert not lcprune.verify(model, plan, x, pruned=changed).ok


def test_number_that_did_not_follow_is_seen() -> None:
    class Laid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 8
            self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.conv(x).view(-1, self.width, 36).mean(2))

    model, x = Laid(), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    wrong = plan.apply(model)
    assert wrong.width == 4 and lcprune.verify(model, plan, x, pruned=wrong).ok
    wrong.width = 8
    with pytest.raises(lcprune.PlanError, match="cannot be run"):
        lcprune.verify(model, plan, x, pruned=wrong)


@pytest.mark.parametrize("scaled", [lambda y, n: y * n**-0.5, lambda y, n: y / math.sqrt(n), lambda y, n: n * y])
def test_width_that_the_code_also_computes_with_freezes_its_channels(scaled: Callable[[Tensor, int], Tensor]) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 8
            self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(scaled(self.conv(x).view(-1, self.width, 36).mean(2), self.width))

    graph = lcprune.trace(Scaled(), torch.randn(2, 3, 8, 8))
    assert not graph.groups and "also computes with" in graph.frozen["conv"]


@pytest.mark.parametrize(
    "sized",
    [
        lambda y: y / y.shape[1],
        lambda y: y / torch.tensor(y.shape[1]),
        lambda y: y * torch.tensor(float(y.shape[1])).sqrt(),
        lambda y: torch.add(y, y, alpha=y.shape[1]),
        lambda y: y / torch.sqrt(torch.tensor(y.shape[1])) / 5 / 7,  # the numbers after it are found again
    ],
)
def test_number_computed_from_a_size_is_taken_from_the_pruned_network_and_said(
    sized: Callable[[Tensor], Tensor],
) -> None:
    class Sized(Small):
        def inside(self, x: Tensor) -> Tensor:
            return sized(super().inside(x))

    model, x = Sized(), torch.randn(2, 3, 8, 8)
    _, plan = _half(model, x)
    verification = lcprune.verify(model, plan, x)
    assert verification.ok and verification.sized == ("",)
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.second.weight.mul_(2)
    assert not lcprune.verify(model, plan, x, pruned=wrong).ok


def test_a_constant_for_each_channel_is_no_number_where_one_is_left() -> None:
    class Constant(Small):
        def inside(self, x: Tensor) -> Tensor:
            y = super().inside(x)
            return 1 + (y + torch.zeros(y.shape[1]).view(1, -1, 1, 1))

    model, x = Constant(), torch.randn(2, 3, 8, 8)
    verification = lcprune.verify(model, lcprune.trace(model, x).plan({"first": [3]}), x)
    assert verification.ok and not verification.sized


def test_numbers_are_compared_where_a_cut_network_copies_less() -> None:
    """With one input channel a linear layer is one operator fewer; the numbers after it are the same ones."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 4), nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(self.conv(x).movedim(1, -1)).movedim(-1, 1)
            return self.head(x * len(x.unbind(1)) / 4)

    model, x = Counted().eval(), torch.randn(2, 3, 5, 5)
    plan = lcprune.trace(model, x).plan({"conv": [2], "linear": [0, 1, 3]})
    assert lcprune.verify(model, plan, x).ok
