"""A small network with every kind of coupling, and the truth about it written down by hand."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import lcprune


class Small(nn.Module):
    """Residual sum, depthwise, transposed and linear layers, work in place; some bare if not `normed`."""

    def __init__(self, normed: bool = True) -> None:
        super().__init__()
        self.stem, self.stem_bn = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv1, self.bn1 = nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.expand, self.expand_bn = nn.Conv2d(6, 5, 1, bias=False), nn.BatchNorm2d(5)
        self.depth, self.depth_bn = nn.Conv2d(5, 5, 3, groups=5, bias=False), nn.BatchNorm2d(5)
        self.up = nn.ConvTranspose2d(5, 4, 2, stride=2)
        self.up_bn = nn.BatchNorm2d(4) if normed else nn.Identity()
        self.fc1 = nn.Linear(4, 7)
        self.fc1_bn = nn.BatchNorm1d(7) if normed else nn.Identity()
        self.fc2 = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem_bn(self.stem(x)))
        y = torch.relu_(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        y = torch.relu(y)
        y = torch.relu(self.expand_bn(self.expand(y)))
        y = torch.relu(self.depth_bn(self.depth(y)))
        y = torch.relu(self.up_bn(self.up(y)).clamp_(max=0.5)).mean((2, 3))
        return self.fc2(torch.relu(self.fc1_bn(self.fc1(y))))


# group -> the layers whose filters it couples, and those that read its units.
FILTERS = {
    "stem": ["stem", "conv2"],
    "conv1": ["conv1"],
    "expand": ["expand", "depth"],
    "up": ["up"],
    "fc1": ["fc1"],
}
READERS = {
    "stem": ["conv1", "expand"],
    "conv1": ["conv2"],
    "expand": ["up"],
    "up": ["fc1"],
    "fc1": ["fc2"],
}
NORMS = {
    "stem": "stem_bn",
    "conv1": "bn1",
    "conv2": "bn2",
    "expand": "expand_bn",
    "depth": "depth_bn",
    "up": "up_bn",
    "fc1": "fc1_bn",
}


@cache
def traced(normed: bool) -> tuple[Small, Any]:
    model = Small(normed=normed).double().eval()
    return model, lcprune.trace(model, torch.randn(1, 3, 6, 6, dtype=torch.double))


@pytest.fixture
def small(request: pytest.FixtureRequest) -> SimpleNamespace:
    """The network in double precision, its graph, 12 images, and what is coupled with what.

    Parametrised with "bare", the transposed and the linear layer have no batch norm.
    """
    normed = getattr(request, "param", "normed") == "normed"
    generator = torch.Generator().manual_seed(3)
    model, graph = traced(normed)  # once for all tests, which get it as new
    model.cpu().eval().requires_grad_(True).zero_grad()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():  # norms that do something: scales of both signs, moved statistics
                tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.double) * 0.5)
        for name, tensor in model.named_buffers():
            if "running_var" in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.double) + 0.5)
    images = torch.randn(12, 3, 6, 6, generator=generator, dtype=torch.double)
    targets = torch.randint(3, (12,), generator=generator)
    assert sorted(group.name for group in graph.groups) == sorted(FILTERS)
    return SimpleNamespace(
        model=model,
        graph=graph,
        images=images,
        targets=targets,
        batches=list(zip(images.split(4), targets.split(4), strict=True)),
        filters=FILTERS,
        readers=READERS,
        norms=NORMS,
    )
