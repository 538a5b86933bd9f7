"""Sums, products, gates and broadcasts that couple channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(
    prunable=("stem", "block1.0", "block1.2", "project", "block2.0", "block2.3"),
    frozen=("fc",),
    units={"stem": 8, "block1.0": 6, "project": 12, "block2.0": 10},
)
class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.block1 = nn.Sequential(nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))
        self.project = nn.Conv2d(8, 12, 1, stride=2)
        self.block2 = nn.Sequential(
            nn.Conv2d(8, 10, 3, padding=1, stride=2), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 12, 1)
        )
        self.bn = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.block1(x))
        x = F.relu(self.project(x) + self.bn(self.block2(x)))
        return self.fc(x.mean((2, 3)))


@enter(prunable=("conv", "squeeze", "excite"), frozen=("fc",), units={"conv": 8, "squeeze": 4})
class SqueezeExciteLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Linear(8, 4)
        self.excite = nn.Linear(4, 8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        b, c, _, _ = x.shape
        gate = F.adaptive_avg_pool2d(x, 1).view(b, c)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(gate)))).view(b, c, 1, 1)
        return self.fc((x * gate.expand_as(x)).mean((2, 3)))


@enter(prunable=("conv", "squeeze", "excite"), frozen=("head",), units={"conv": 8, "squeeze": 4})
class SqueezeExciteConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Conv2d(8, 4, 1)
        self.excite = nn.Conv2d(4, 8, 1)
        self.head = nn.Conv2d(8, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        return self.head(x * F.hardsigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True))))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class SpatialGate(nn.Module):
    """[B, 1, H, W] * [B, C, H, W]: the single channel stays, the others go one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.gate = nn.Conv2d(8, 1, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(torch.sigmoid(self.gate(x)) * x)


@enter((2, 3, 8, 8), (2, 1, 6, 6), prunable=("conv",), frozen=("head",), units={"conv": 8})
class MaskInput(nn.Module):
    """A one-channel input multiplies every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)) * mask)


@enter(prunable=("first", "second", "third"), frozen=("fc",), units={"first": 6, "second": 4, "third": 5})
class DenseConcatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.bn1 = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 4, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(10)
        self.third = nn.Conv2d(10, 5, 3, padding=1)
        self.bn3 = nn.BatchNorm2d(15)
        self.fc = nn.Linear(15, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cat([x, self.second(F.relu(self.bn1(x)))], 1)
        x = torch.cat([x, self.third(F.relu(self.bn2(x)))], 1)
        return self.fc(F.relu(self.bn3(x)).mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class ConcatenatedWithItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(12)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(self.bn(torch.cat([x, x], 1)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class ConcatenatedRelu(nn.Module):
    """CReLU: a channel and its negative, and one more with constant channels of its own size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(18, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(torch.cat([F.relu(x), F.relu(-x), torch.zeros_like(x)], 1))


@enter(prunable=("a", "b", "c"), frozen=("head",), units={"b": 4, "c": 3})
class SumOfConcatenations(nn.Module):
    """cat(a, b) + c': a sum couples a's channels with the first ones of c."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 5, 1)
        self.b = nn.Conv2d(3, 4, 1)
        self.c = nn.Conv2d(3, 9, 1)
        self.head = nn.Conv2d(9, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(torch.cat([self.a(x), self.b(x)], 1) + self.c(x)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class GatedLinearUnit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3)
        self.bn = nn.BatchNorm2d(12)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.bn(self.conv(x)), dim=1))


@enter((2, 5, 6), prunable=("fc1",), frozen=("fc2",), units={"fc1": 7})
class ChunkGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 14)
        self.fc2 = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(value * F.silu(gate))


@enter(prunable=("conv", "left", "right"), frozen=("head",), units={"conv": 3, "left": 5, "right": 6})
class SplitInHalves(nn.Module):
    """The size of the parts follows from the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.left = nn.Conv2d(4, 5, 1)
        self.right = nn.Conv2d(4, 6, 1)
        self.head = nn.Conv2d(11, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        left, right = torch.split(x, x.shape[1] // 2, dim=1)
        return self.head(torch.cat([F.relu(self.left(left)), F.relu(self.right(right))], 1))


@enter(prunable=("conv", "pick"), frozen=("head",), units={"conv": 3, "pick": 4})
class SlicedHalves(nn.Module):
    """x[:, : c // 2] and x[:, c // 2 :]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.pick = nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        half = x.shape[1] // 2
        return self.head(torch.cat([self.pick(x[:, :half]), x[:, half:]], 1))


@enter(
    (2, 3, 8, 8),
    prunable=("conv1", "conv2", "conv3"),
    frozen=("head",),
    units={"conv1": 6, "conv2": 8, "conv3": 5},
)
class SkipAndResize(nn.Module):
    """U-Net: down, up by interpolation, concatenated with the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(14, 5, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.head = nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.conv1(x))
        x = F.relu(self.conv2(F.max_pool2d(skip, 2)))
        x = F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)
        x = self.up(F.relu(self.conv3(torch.cat([skip, x], 1))))
        return self.head(F.interpolate(x, scale_factor=0.5, mode="bicubic"))
