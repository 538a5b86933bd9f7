"""Normalisation and other per-channel parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 4}, mixing=("conv1",))
class GroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3)
        self.norm = nn.GroupNorm(3, 12)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv1(x))))


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 8}, mixing=("conv1",))
class GroupNormOfOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(1, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv1(x))))


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 8}, mixing=("conv1",))
class LayerNormChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm = nn.LayerNorm(8)
        self.conv2 = nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv1(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(F.relu(self.conv2(x)))


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 8, "conv2": 6}, mixing=("conv1",))
class LayerNormChannelsFirst(nn.Module):
    """Written out, as in ConvNeXt: mean and variance over dimension 1, weights with trailing axes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.weight = nn.Parameter(torch.ones(8))
        self.bias = nn.Parameter(torch.zeros(8))
        self.conv2 = nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return self.head(F.relu(self.conv2(x)))


class LayerNorm2d(nn.LayerNorm):
    """`F.layer_norm` with the module's own `normalized_shape`."""

    def forward(self, input: Tensor) -> Tensor:
        x = F.layer_norm(input.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 8}, mixing=("conv1",))
class LayerNormSubclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm = LayerNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv1(x))))


@enter(prunable=("conv1", "conv2", "conv3"), frozen=("head",), units={"conv1": 6, "conv2": 5, "conv3": 4})
class InstanceNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.plain = nn.InstanceNorm2d(6)
        self.conv2 = nn.Conv2d(6, 5, 3)
        self.affine = nn.InstanceNorm2d(5, affine=True)
        self.conv3 = nn.Conv2d(5, 4, 1)
        self.tracked = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.plain(self.conv1(x)))
        x = F.relu(self.affine(self.conv2(x)))
        return self.head(F.relu(self.tracked(self.conv3(x))))


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 6, "conv2": 5})
class ParametricRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.shared = nn.PReLU()
        self.conv2 = nn.Conv2d(6, 5, 3)
        self.each = nn.PReLU(5)
        self.head = nn.Conv2d(5, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(self.conv2(self.shared(self.conv1(x)))))


@enter(prunable=("conv1", "conv2", "conv3"), frozen=("head",), units={"conv1": 6, "conv2": 5, "conv3": 7})
class LayerScale(nn.Module):
    """Bare parameters of three shapes, multiplied and added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.gamma = nn.Parameter(torch.ones(6, 1, 1))
        self.conv2 = nn.Conv2d(6, 5, 1)
        self.scale = nn.Parameter(torch.ones(1, 5, 1, 1))
        self.shift = nn.Parameter(torch.zeros(5))
        self.conv3 = nn.Conv2d(5, 7, 1)
        self.last = nn.Parameter(torch.ones(7))
        self.head = nn.Conv2d(7, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x) * self.gamma)
        x = F.relu(self.conv2(x) * self.scale + self.shift.view(1, -1, 1, 1))
        x = (self.conv3(x).permute(0, 2, 3, 1) * self.last).permute(0, 3, 1, 2)
        return self.head(F.relu(x))


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 6})
class PositionEmbedding(nn.Module):
    """A parameter over channels and space, and one over tokens and channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.grid = nn.Parameter(torch.randn(1, 6, 6, 6))
        self.tokens = nn.Parameter(torch.randn(1, 36, 6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.conv1(x) + self.grid).flatten(2).transpose(1, 2)
        return self.head(F.relu(x + self.tokens))


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 6})
class FunctionalBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.gain = nn.Parameter(torch.ones(6))
        self.offset = nn.Parameter(torch.zeros(6))
        self.register_buffer("running_mean", torch.zeros(6))
        self.register_buffer("running_var", torch.ones(6))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.conv1(x), self.running_mean, self.running_var, self.gain, self.offset)
        return self.head(F.relu(x))


@enter(prunable=("conv1",), frozen=("head",), units={"conv1": 6})
class FrozenBatchNorm(nn.Module):
    """Statistics as buffers, folded by hand in `forward`, as in detection networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, bias=False)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, 0.5 + torch.rand(6))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        shift = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        return self.head(F.relu(self.conv1(x) * scale + shift))
