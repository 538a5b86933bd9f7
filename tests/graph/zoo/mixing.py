"""Operators along the channel axis: removal and silencing differ by design."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


class StdConv2d(nn.Conv2d):
    """Weight standardisation over (in, kh, kw): cutting inputs changes the statistics of every filter."""

    def forward(self, input: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
        weight = weight.reshape_as(self.weight)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 8, "conv2": 6}, mixing=("conv1",))
class WeightStandardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = StdConv2d(3, 8, 3)
        self.conv2 = StdConv2d(8, 6, 3)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv2(F.relu(self.conv1(x)))))


class ScaledStdConv2d(nn.Conv2d):
    """Written out, with a gain per filter, as in normaliser-free networks."""

    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) * torch.rsqrt(variance * self.weight[0].numel() + 1e-4) * self.gain
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 8, "conv2": 6}, mixing=("conv1",))
class ScaledStandardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = ScaledStdConv2d(3, 8, 3)
        self.conv2 = ScaledStdConv2d(8, 6, 3)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.silu(self.conv2(F.silu(self.conv1(x)))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8}, mixing=("conv",))
class EfficientChannelAttention(nn.Module):
    """A 1-d convolution along the channels: neighbours are part of the computation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        y = x.mean((2, 3)).view(x.shape[0], 1, -1)
        y = torch.sigmoid(self.eca(y)).view(x.shape[0], -1, 1, 1)
        return self.head(x * y.expand_as(x))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8}, mixing=("conv",))
class SpatialAttention(nn.Module):
    """CBAM: mean and maximum over the channels make a spatial gate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.gate = nn.Conv2d(2, 1, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.head(x * torch.sigmoid(self.gate(pooled)))


@enter(frozen=("head",), mixing=("conv",))
class ChannelSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).softmax(1))


@enter(frozen=("head",), mixing=("conv",))
class ChannelL2Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.normalize(self.conv(x), dim=1))


@enter(frozen=("head",), mixing=("conv",))
class LocalResponse(nn.Module):
    """Normalised by neighbouring channels: after a cut the neighbours are others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.LocalResponseNorm(3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.relu(self.conv(x))))


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 8, "conv2": 6}, mixing=("conv1",))
class GlobalResponse(nn.Module):
    """GRN of ConvNeXt V2, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.weight = nn.Parameter(torch.ones(8))
        self.bias = nn.Parameter(torch.zeros(8))
        self.conv2 = nn.Linear(8, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv1(x)).permute(0, 2, 3, 1)
        energy = x.norm(p=2, dim=(1, 2), keepdim=True)
        energy = energy / (energy.mean(dim=-1, keepdim=True) + 1e-6)
        x = x + torch.addcmul(self.bias.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), x * energy)
        return self.head(F.relu(self.conv2(x)))
