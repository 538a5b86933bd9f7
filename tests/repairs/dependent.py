"""Networks in which every channel that goes is a linear combination of channels that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lcprune
from lcprune.batches import Batch
from lcprune.graph.outputs import leaves, tensors
from lcprune.repairs import distil


def take_steps(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let distillations be short."""
    monkeypatch.setattr(distil, "STEPS", steps)


@dataclass(frozen=True)
class Case:
    """A network, what is kept of it, and images."""

    model: nn.Module
    kept: Mapping[str, Sequence[int]]
    images: Tensor
    plan: Any = None


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    def seeded() -> Case:
        torch.manual_seed(0)
        made = make()
        model, inputs = settled(made.model.double()), made.images.double()
        return Case(model, made.kept, inputs, lcprune.trace(model, inputs[:2]).plan(made.kept))

    CASES[make.__name__] = seeded
    return seeded


def settled(model: nn.Module) -> nn.Module:
    """With batch-norm numbers that are neither zero nor one, in evaluation mode."""
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    return model.eval()


@torch.no_grad()
def depend(layer: Any, groups: int = 1, constant: bool = False, mix: Tensor | None = None) -> Tensor:
    """Make the last quarter of a layer's outputs, group by group, combinations of the others; gives them back."""
    out = 1 if getattr(layer, "transposed", False) else 0
    weight = layer.weight.transpose(0, out)
    size = len(weight) // groups
    gone = size // 4
    mix = torch.randn(groups, gone, size - gone) if mix is None else mix
    for group in range(groups):
        own = slice(group * size, (group + 1) * size)
        rows = weight[own].clone()
        rows[-gone:] = torch.tensordot(mix[group], rows[:-gone], 1)
        weight[own] = rows
        if layer.bias is not None:
            bias = layer.bias[own].clone()
            bias[-gone:] = mix[group] @ bias[:-gone] + (1 + torch.rand(gone) if constant else 0)
            layer.bias[own] = bias
    return mix


def images(*size: int, count: int = 240) -> Tensor:
    return torch.randn(count, *size)


def batch(inputs: Any, count: int | None = None) -> Batch:
    return Batch(inputs, (), len(inputs) if count is None else count)


@torch.no_grad()
def error(whole: nn.Module, other: nn.Module, inputs: Any) -> float:
    """Size of the difference of all outputs, as a share of how much they differ from image to image."""
    apart = spread = 0.0
    for a, b in zip(*(tensors(leaves(model(inputs))) for model in (whole, other)), strict=True):
        apart += float((a - b).square().sum())
        spread += float((a - a.mean(0)).square().sum() if len(a) > 1 else a.square().sum())
    return (apart / spread) ** 0.5


@case
def conv1d() -> Case:
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Conv1d(8, 4, 3, padding=1))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 12))


@case
def conv2d() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, padding=1, stride=2))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def conv3d() -> Case:
    model = nn.Sequential(nn.Conv3d(2, 8, 2), nn.Conv3d(8, 4, 3, dilation=2, padding=2))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(2, 5, 5, 5))


@case
def constant_into_a_bias() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def constant_behind_replicated_borders() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, padding=1, padding_mode="replicate"))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def constant_into_a_batch_norm() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def constant_into_both_a_bias_and_a_batch_norm() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def neither_bias_nor_norm() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, padding=1, bias=False))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 8, 8) + 1)


@case
def groups_that_lose_inner_channels() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3, groups=2), nn.Conv2d(6, 4, 1))
    depend(model[0], groups=2)
    return Case(model, {"0": range(3)}, images(3, 8, 8))


@case
def transposed() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 6, 6))


@case
def transposed_with_a_constant() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 1, stride=1))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 6, 6))


@case
def transposed_with_groups() -> Case:
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ConvTranspose1d(8, 6, 4, stride=2, groups=2))
    depend(model[0], groups=2)
    return Case(model, {"0": range(3)}, images(3, 12))


@case
def transposed_producer() -> Case:
    model = nn.Sequential(nn.ConvTranspose2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 4, 3))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 6, 6))


@case
def linear() -> Case:
    model = nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 4))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(7))


@case
def linear_on_tokens() -> Case:
    model = nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 4))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(5, 7))


@case
def linear_behind_a_flatten() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 4))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 4, 4, count=400))


@case
def linear_behind_a_batch_norm() -> Case:
    model = nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(7))


@case
def behind_a_depthwise_layer() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Conv2d(8, 4, 1))
    depend(model[0])
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(1, 1, 3, 3) * (1 + torch.rand(8, 1, 1, 1)))
    return Case(model, {"0": range(6)}, images(3, 8, 8))


@case
def behind_pooling() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AvgPool2d(2), nn.Conv2d(8, 4, 3, padding=1))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 10, 10))


@case
def behind_global_pooling() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    depend(model[0], constant=True)
    return Case(model, {"0": range(6)}, images(3, 8, 8, count=300))


class _Concatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.reader = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 4, 3), nn.Conv2d(12, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(torch.cat([self.left(x), self.right(x)], 1))


@case
def concatenation() -> Case:
    model = _Concatenation()
    depend(model.left, constant=True)
    depend(model.right, constant=True)
    return Case(model, {"left": range(6), "right": range(3)}, images(3, 7, 7))


class Residual(nn.Module):
    """A stream that several layers read and write; several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(6)
        self.inner, self.back = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.Conv2d(6, 8, 1)
        self.head, self.side = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.stem(x)
        x = x + self.back(torch.relu(self.norm(self.inner(x))))
        return {"map": self.head(x), "more": [self.side(x.mean((2, 3)))]}


@case
def residual() -> Case:
    model = Residual()
    depend(model.back, mix=depend(model.stem))
    return Case(model, {"stem": range(6)}, images(3, 7, 7))


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.reader = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.one(x)) + self.reader(self.two(x)).tanh()


@case
def reader_that_runs_twice() -> Case:
    model = _Twice()
    depend(model.two, constant=False, mix=depend(model.one, constant=False))
    return Case(model, {"one": range(6)}, images(3, 7, 7))


class OwnPadding(nn.Conv2d):
    """Pads in its forward, as converted networks do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


@case
def own_padding() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), OwnPadding(8, 4, 3, stride=2))
    depend(model[0])
    return Case(model, {"0": range(6)}, images(3, 8, 8))


class _Reset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.reader = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.reader.padding = (2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.first(x))


@case
def padding_set_anew() -> Case:
    model = _Reset()
    depend(model.first)
    return Case(model, {"first": range(6)}, images(3, 8, 8))


class _ReturnsInner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.reader, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.reader(self.first(x))
        return inner, self.norm(inner)


@case
def inner_layer_that_is_returned() -> Case:
    model = _ReturnsInner()
    depend(model.first)
    return Case(model, {"first": range(6)}, images(3, 8, 8) + 1)


def pairs(inputs: Tensor) -> list[tuple[Any, Any]]:
    """Single images without targets."""
    return [(image, ()) for image in inputs]


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have the same numbers."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
