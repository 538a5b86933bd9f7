"""Operators that only move data: shuffles, flattens, repeats, flips, rolls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 2, "conv2": 2})
class ChannelShuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3)
        self.conv2 = nn.Conv2d(12, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = shuffle(F.relu(self.conv1(x)), 3)
        return self.head(F.relu(shuffle(self.conv2(x), 2)))


def shuffle(x: Tensor, groups: int) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


@enter(prunable=("conv1", "conv2"), frozen=("head",), units={"conv1": 2, "conv2": 4})
class ShuffleModule(nn.Module):
    """ShuffleNet: shuffled channels meet a grouped convolution; even and odd ones are the two units."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.shuffle = nn.ChannelShuffle(2)
        self.conv2 = nn.Conv2d(8, 8, 1, groups=2)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv2(self.shuffle(F.relu(self.conv1(x))))))


@enter(prunable=("conv", "after"), frozen=("head",), units={"conv": 4, "after": 6})
class PixelShuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.up = nn.PixelShuffle(2)
        self.after = nn.Conv2d(4, 6, 3)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(F.relu(self.up(self.conv(x))))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class PixelShufflePooled(nn.Module):
    """Space now holds channels; what works along space keeps the four of a unit together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.pixel_shuffle(self.conv(x), 2), 3, 2, 1)
        return self.head(F.relu(F.interpolate(x, scale_factor=2.0, mode="bilinear")).mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class PixelUnshuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(24)
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bn(F.pixel_unshuffle(F.relu(self.conv(x)), 2)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class SpaceToDepthBySlices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return self.head(torch.cat(parts, 1))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class SpaceToDepthByPermute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4)
        return self.head(x.reshape(b, c * 4, h // 2, w // 2))


@enter(prunable=("conv", "fc1"), frozen=("fc2",), units={"conv": 6, "fc1": 8})
class FlattenChannelsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc1 = nn.Linear(6 * 36, 8)
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(torch.flatten(torch.sigmoid(self.conv(x)), 1))))


@enter(prunable=("conv",), frozen=("fc",), units={"conv": 6})
class FlattenChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc = nn.Linear(6 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).permute(0, 2, 3, 1).flatten(1))


@enter(prunable=("conv",), frozen=("fc",), units={"conv": 6})
class FlattenByView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc = nn.Linear(6 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.fc(x.view(x.size(0), -1))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class Repeat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).repeat(1, 2, 1, 1))


@enter(prunable=("conv", "wide"), frozen=("head",), units={"conv": 6, "wide": 6})
class RepeatInterleave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.wide = nn.Conv2d(3, 12, 3)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).repeat_interleave(2, dim=1) + self.wide(x))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class ExpandAndReshape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(18, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        b, c, h, w = x.shape
        return self.head(x.unsqueeze(2).expand(b, c, 3, h, w).reshape(b, c * 3, h, w))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class Flip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bn(torch.flip(F.relu(self.conv(x)), dims=(1, 3))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class Roll(nn.Module):
    """Rolling the kept channels is not keeping the rolled ones: the consumer's columns change places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.roll(F.relu(self.conv(x)), 3, 1))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class RollByOne(nn.Module):
    """The smallest step is the one that a trial cut most easily overlooks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.roll(F.relu(self.conv(x)), 1, 1).mean((2, 3)))


@enter(prunable=("conv", "middle"), frozen=("head",), units={"conv": 8, "middle": 6})
class RollBeforeNorm(nn.Module):
    """What rides on the rolled channels (batch norm, depthwise) changes places too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.middle = nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(torch.roll(F.relu(self.conv(x)), -2, 1))
        return self.head(F.relu(self.middle(self.depthwise(x))))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class RollInSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(x + torch.roll(x, (1, 2), (2, 3)))


@enter(prunable=("conv", "other"), frozen=("head",), units={"conv": 6})
class StackAndUnbind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.other = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        stacked = torch.stack([F.relu(self.conv(x)), self.other(x)], dim=1)
        first, second = torch.softmax(stacked, dim=1).unbind(1)
        return self.head(torch.cat([first * 2, second], 1))


@enter(prunable=("conv", "other"), frozen=("head",), units={"conv": 6, "other": 6})
class StackInterleaved(nn.Module):
    """stack on a new axis after the channels, then flatten: a, b, a, b, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.other = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([F.relu(self.conv(x)), self.other(x)], dim=2).flatten(1, 2))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 3})
class UnbindParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 9, 3)
        self.head = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        b, c, h, w = x.shape
        q, k, v = x.reshape(b, 3, c // 3, h, w).unbind(1)
        return self.head(q * torch.sigmoid(k) + v)


@enter((2, 3, 8, 8), prunable=("conv",), frozen=("head",), units={"conv": 6})
class SpatialPadding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.reflect = nn.ReflectionPad2d(1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reflect(F.relu(self.conv(x)))
        x = F.pad(F.pad(x, (1, 0, 2, 1)), (1, 1, 1, 1), mode="replicate")
        return self.head(x[:, :, 1:-1, ::2].contiguous().clone())


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class Unfold(nn.Module):
    """`F.unfold` delivers (channel, position) columns; the linear layer reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).unfold(2, 2, 2).unfold(3, 2, 2)
        b, c, h, w, i, j = x.shape
        return self.head(x.permute(0, 2, 3, 1, 4, 5).reshape(b, h * w, c * i * j))
