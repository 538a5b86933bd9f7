"""Layers that produce and consume channels: convolutions of every kind, linear layers, bare weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(prunable=("conv1", "conv2"), frozen=("fc",), units={"conv1": 8, "conv2": 12})
class PlainConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.silu(self.bn2(self.conv2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


@enter((2, 3, 16), prunable=("conv1", "conv2"), frozen=("fc",), units={"conv1": 8, "conv2": 6})
class Conv1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 8, 3)
        self.bn = nn.BatchNorm1d(8)
        self.conv2 = nn.Conv1d(8, 6, 3, dilation=2)
        self.fc = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.sigmoid(self.conv2(F.gelu(self.bn(self.conv1(x))))).mean(-1))


@enter((2, 2, 4, 6, 6), prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 6, "conv2": 6})
class Conv3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 6, 3, padding=1)
        self.bn = nn.BatchNorm3d(6)
        self.conv2 = nn.Conv3d(6, 6, (1, 3, 3), stride=2)
        self.pool = nn.MaxPool3d(2, padding=1)
        self.head = nn.Conv3d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(F.elu(self.conv2(F.leaky_relu(self.bn(self.conv1(x)), 0.1)))))


@enter((2, 3, 6, 6), prunable=("conv", "up1", "up2"), frozen=("head",), units={"conv": 8, "up1": 6, "up2": 4})
class Transposed2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.up1 = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.up2 = nn.ConvTranspose2d(6, 4, 2, stride=2, bias=False)
        self.head = nn.ConvTranspose2d(4, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.up2(F.relu(self.bn(self.up1(F.relu(self.conv(x))))))))


@enter((2, 3, 8), (2, 2, 3, 4, 4), prunable=("up1", "up3"), units={"up1": 6, "up3": 4})
class Transposed1d3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up1 = nn.ConvTranspose1d(3, 6, 2, stride=2)
        self.head1 = nn.Conv1d(6, 2, 1)
        self.up3 = nn.ConvTranspose3d(2, 4, 2, stride=2)
        self.head3 = nn.Conv3d(4, 2, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.head1(F.relu(self.up1(x))), self.head3(F.relu(self.up3(y)))


@enter(prunable=("conv1", "grouped"), frozen=("head",), units={"conv1": 2, "grouped": 3})
class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.grouped = nn.Conv2d(8, 12, 3, groups=4)
        self.head = nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.grouped(F.relu(self.conv1(x)))))


@enter(prunable=("conv1", "up"), frozen=("head",), units={"conv1": 4, "up": 3})
class GroupedTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.up(F.relu(self.conv1(x)))))


@enter(prunable=("conv1", "conv2", "conv3"), frozen=("head",), units={"conv1": 4, "conv3": 6})
class GroupedChain(nn.Module):
    """Two grouped layers after one another: the cut of one must suit the groups of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 1)
        self.conv2 = nn.Conv2d(16, 24, 3, groups=2)
        self.conv3 = nn.Conv2d(24, 24, 3, groups=4)
        self.head = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))))


@enter(prunable=("stem", "reduce", "grouped", "expand"), frozen=("fc",), units={"reduce": 4, "stem": 12})
class ResNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3)
        self.reduce = nn.Conv2d(12, 8, 1)
        self.bn1 = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.bn2 = nn.BatchNorm2d(8)
        self.expand = nn.Conv2d(8, 12, 1)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.expand(F.relu(self.bn2(self.grouped(F.relu(self.bn1(self.reduce(x)))))))
        return self.fc(F.relu(x + y).mean((2, 3)))


@enter(prunable=("conv1", "depthwise", "pointwise"), frozen=("fc",), units={"conv1": 8, "pointwise": 12})
class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.bn = nn.BatchNorm2d(8)
        self.pointwise = nn.Conv2d(8, 12, 1, bias=False)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.conv1(x))
        return self.fc(F.relu6(self.pointwise(F.relu6(self.bn(self.depthwise(x))))).mean((2, 3)))


@enter(prunable=("conv1", "depthwise"), frozen=("head",), units={"conv1": 8, "depthwise": 8})
class DepthwiseMultiplier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.depthwise = nn.Conv2d(8, 16, 3, groups=8)
        self.bn = nn.BatchNorm2d(16)
        self.head = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.depthwise(F.relu(self.conv1(x))))))


@enter(prunable=("conv1", "depthwise"), frozen=("head",), units={"conv1": 6, "depthwise": 6})
class DepthwiseTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.depthwise = nn.ConvTranspose2d(6, 6, 2, stride=2, groups=6)
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.depthwise(F.relu(self.conv1(x)))))


@enter((2, 7), prunable=("fc1", "fc2"), frozen=("fc3",), units={"fc1": 10, "fc2": 9})
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, 10)
        self.bn = nn.BatchNorm1d(10)
        self.fc2 = nn.Linear(10, 9, bias=False)
        self.fc3 = nn.Linear(9, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.drop(torch.sigmoid(self.fc2(F.relu(self.bn(self.fc1(x)))))))


@enter((2, 5, 7), prunable=("fc1", "fc2"), frozen=("fc3",), units={"fc1": 10, "fc2": 8})
class TokenMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, 10)
        self.fc2 = nn.Linear(10, 8)
        self.fc3 = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))).mean(1))


@enter(prunable=("weight1", "weight2"), frozen=("weight3",), units={"weight1": 8, "weight2": 6})
class FunctionalWeights(nn.Module):
    """`F.conv2d` and `F.linear` on bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.bias1 = nn.Parameter(torch.randn(8))
        self.weight2 = nn.Parameter(torch.randn(6, 8))
        self.bias2 = nn.Parameter(torch.randn(6))
        self.weight3 = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, self.weight1, self.bias1)).mean((2, 3))
        return F.linear(F.relu(F.linear(x, self.weight2, self.bias2)), self.weight3)


@enter(prunable=("filters.first",), frozen=("filters.last",), units={"filters.first": 8})
class ParameterDictWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ParameterDict(
            {"first": nn.Parameter(torch.randn(8, 3, 3, 3)), "last": nn.Parameter(torch.randn(4, 8, 1, 1))}
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.relu(F.conv2d(x, self.filters["first"], padding=1)), self.filters["last"])


@enter(prunable=("stem", "body"), frozen=("head",), units={"stem": 8, "body": 8})
class CalledTwice(nn.Module):
    """The output of `body` is also its input: rows and columns of one weight are one group."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for _ in range(2):
            x = F.relu(self.bn(self.body(x)))
        return self.head(x)


@enter(prunable=("left", "right", "shared"), frozen=("head",), units={"left": 6, "shared": 8})
class SharedTower(nn.Module):
    """One module reads two tensors, so that their channels go together."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 6, 3)
        self.right = nn.Conv2d(3, 6, 3, stride=2)
        self.shared = nn.Conv2d(6, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.head(F.relu(self.shared(F.relu(branch(x))))) for branch in (self.left, self.right)]


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv2": 8})
class TiedWeights(nn.Module):
    """Two modules hold one weight; it stays one after the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv3.weight = self.conv2.weight
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))))


@enter((2, 6), prunable=("encode",), units={"encode": 9})
class TiedAutoencoder(nn.Module):
    """The decoder is the encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.encode(x)), self.encode.weight.t())


@enter((2, 3, 10, 10), prunable=("conv1", "conv2"), frozen=("fc",), units={"conv1": 8, "conv2": 6})
class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, 2, 1, ceil_mode=True)
        x = F.avg_pool2d(self.conv2(x), 2, count_include_pad=False)
        x = F.lp_pool2d(F.relu(x), 2, 2)
        return self.fc((F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, 1) + x.amax((2, 3), True)).flatten(1))
