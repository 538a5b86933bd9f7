"""Blocks of real networks, where several idioms meet; and parametrised weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from zoo.entry import enter
from zoo.moves import shuffle


@enter(
    prunable=("stem", "left.1", "right.0", "right.2", "right.3"),
    frozen=("fc",),
    units={"stem": 8, "left.1": 3, "right.0": 6, "right.2": 6, "right.3": 3},
)
class ShuffleNetUnit(nn.Module):
    """A strided unit, then one that splits, transforms half, concatenates and shuffles."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.Conv2d(8, 6, 1), nn.ReLU())
        self.right = nn.Sequential(
            nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1, groups=6), nn.Conv2d(6, 6, 1), nn.ReLU()
        )
        self.transform = nn.Sequential(
            nn.Conv2d(6, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.Conv2d(6, 6, 1), nn.ReLU()
        )
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = shuffle(torch.cat([self.left(x), self.right(x)], 1), 2)
        first, second = x.chunk(2, dim=1)
        x = shuffle(torch.cat([first, self.transform(second)], 1), 2)
        return self.fc(x.mean((2, 3)))


@enter(
    prunable=("stem", "expand", "depthwise", "project", "squeeze"),
    frozen=("fc",),
    units={"stem": 6, "expand": 12, "squeeze": 3},
)
class InvertedResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.expand = nn.Conv2d(6, 12, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.squeeze = nn.Conv2d(12, 3, 1)
        self.excite = nn.Conv2d(3, 12, 1)
        self.project = nn.Conv2d(12, 6, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        y = F.hardswish(self.bn2(self.depthwise(F.hardswish(self.bn1(self.expand(x))))))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return self.fc((x + self.bn3(self.project(y))).mean((2, 3)))


@enter(prunable=("stem", "wide", "narrow"), frozen=("fc",), units={"stem": 6, "wide": 12}, mixing=("stem",))
class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, stride=2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.LayerNorm(6)
        self.wide = nn.Linear(6, 12)
        self.narrow = nn.Linear(12, 6)
        self.gamma = nn.Parameter(torch.ones(6))
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = (self.gamma * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)
        return self.fc((x + y).mean((-2, -1)))


@enter(prunable=("stem", "down", "body", "merge"), frozen=("fc",), units={"body": 4, "merge": 7})
class CrossStagePartial(nn.Module):
    """Two halves of a convolution's output; one is processed, both are concatenated again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.down = nn.Conv2d(6, 8, 1)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.merge = nn.Conv2d(8, 7, 1)
        self.fc = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.down(F.silu(self.stem(x))))
        keep, work = x.chunk(2, dim=1)
        x = torch.cat([keep, F.silu(self.body(work))], 1)
        return self.fc(F.silu(self.merge(x)).mean((2, 3)))


@enter(prunable=("stem", "transform"), frozen=("fc",), units={"stem": 6, "transform": 6})
class DualPath(nn.Module):
    """A residual part and a dense part in one tensor, split by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.num_residual = 6
        self.stem = nn.Conv2d(3, 10, 3)
        self.reduce = nn.Conv2d(10, 5, 1)
        self.transform = nn.Conv2d(5, 9, 3, padding=1)
        self.fc = nn.Linear(13, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.transform(F.relu(self.reduce(F.relu(x))))
        residual = x[:, : self.num_residual] + y[:, : self.num_residual]
        dense = torch.cat([x[:, self.num_residual :], y[:, self.num_residual :]], 1)
        return self.fc(F.relu(torch.cat([residual, dense], 1)).mean((2, 3)))


@enter(prunable=("branch1", "branch2", "fc1"), frozen=("head",), units={"branch1": 6, "fc1": 5})
class SelectiveKernel(nn.Module):
    """Branches weighed by a softmax over branches, not over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.branch1 = nn.Conv2d(3, 6, 3, padding=1)
        self.branch2 = nn.Conv2d(3, 6, 3, padding=2, dilation=2)
        self.fc1 = nn.Conv2d(6, 5, 1)
        self.fc2 = nn.Conv2d(5, 12, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        branches = torch.stack([F.relu(self.branch1(x)), F.relu(self.branch2(x))], dim=1)
        attention = self.fc2(F.relu(self.fc1(branches.sum(1).mean((2, 3), keepdim=True))))
        b, c, h, w = attention.shape
        attention = torch.softmax(attention.view(b, 2, c // 2, h, w), dim=1)
        return self.head((branches * attention).sum(1))


@enter(frozen=("head",))
class RollThenGrouped(nn.Module):
    """A roll carries channels over the border between two groups; whatever may be cut must not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.grouped = nn.Conv2d(8, 6, 1, groups=2)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.grouped(torch.roll(F.relu(self.conv(x)), 2, 1))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class GroupedThenRoll(nn.Module):
    """Units of two channels that a roll carries past one another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.grouped = nn.Conv2d(8, 6, 1, groups=2)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.roll(F.relu(self.grouped(F.relu(self.conv(x)))), 2, 1))


@enter(frozen=("head",))
class RepeatThenRoll(nn.Module):
    """Two copies of each channel: a roll by one parts them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.roll(F.relu(self.conv(x)).repeat_interleave(2, 1), 1, 1))


@enter(frozen=("head",), mixing=("conv",))
class RollThenGroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(torch.roll(self.conv(x), 2, 1))))


@enter(frozen=("head",), mixing=("conv",))
class ShuffleGateGroupNorm(nn.Module):
    """Three operators that split the same axis, each its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = shuffle(self.conv(x), 2).chunk(2, 1)
        return self.head(self.norm(value * torch.sigmoid(gate)))


@enter(prunable=("conv",), frozen=("fc",), units={"conv": 6}, may_refuse=True)
class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv2d(3, 6, 3))
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


@enter(mixing=("conv",), may_refuse=True)
class WeightNormedConsumer(nn.Module):
    """The norm of a row is over its inputs: cutting one changes the others' scale."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc = weight_norm(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


@enter(may_refuse=True)
class SpectralNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = spectral_norm(nn.Conv2d(3, 6, 3))
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


@enter(prunable=("conv", "parts", "context"), frozen=("head",), units={"conv": 4})
class PartsAsWideAsTheInput(nn.Module):
    """Focal modulation: query and context, which different layers read, are as wide as what they were made from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.parts = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 9, 1)
        self.context, self.out = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        width = x.shape[1]
        query, context, gate = self.parts(x).split((width, width, 1), 1)
        return self.head((x + self.out(query * self.context(context * gate))).mean((2, 3)))
