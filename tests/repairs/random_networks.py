"""Small networks with random weights, one of each kind, and a plan that keeps half of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dependent import Case, images, settled
from torch import Tensor, nn

import lcprune
from lcprune.plan import Plan


def _plain() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


def _without_norms() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2, bias=False), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(6 * 4, 8), nn.ReLU(), nn.Linear(8, 3)),
    )


def _depthwise() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )


def _up_and_down() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)),
        *(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)),
    )


def _grouped() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 8, 2, stride=2, groups=4), nn.ReLU(), nn.Conv2d(8, 3, 1)),
    )


def _group_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3))


def _tokens() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 2, stride=2), nn.Flatten(2), _Turn(), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()),
        *(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4)),
    )


class _Turn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class _Stream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner, self.norm = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.back, self.side = nn.Conv2d(6, 8, 1), nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = x + self.back(torch.relu(self.norm(self.inner(x))))
        return self.head(torch.cat([x.amax((2, 3)), self.side(x).mean((2, 3))], 1))


NETWORKS: dict[str, Callable[[], Any]] = {
    "plain": _plain,
    "without norms": _without_norms,
    "depthwise": _depthwise,
    "up and down": _up_and_down,
    "grouped": _grouped,
    "group norm": _group_norm,
    "tokens": _tokens,
    "residual": _Stream,
}


@functools.cache
def _plan(name: str, seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    graph = lcprune.trace(settled(NETWORKS[name]()), images(3, 8, 8, count=2))
    return graph.plan([sorted(rng.permutation(group.size)[: max(1, group.size // 2)]) for group in graph.groups])


def half(name: str, seed: int = 0, count: int = 30) -> Case:
    """A network of which half of every group stays, drawn at random."""
    plan = _plan(name, seed)
    torch.manual_seed(seed)
    return Case(settled(NETWORKS[name]()), plan.kept, images(3, 8, 8, count=count), plan)
