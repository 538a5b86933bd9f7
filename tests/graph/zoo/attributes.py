"""Sizes that the network keeps in Python: attributes that the surgery must update."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(prunable=("conv", "middle"), frozen=("head",), units={"conv": 4, "middle": 4})
class SplitByAttribute(nn.Module):
    """torch.split(x, self.width, 1), as in Res2Net."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 4
        self.conv = nn.Conv2d(3, 8, 3)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(F.relu(self.conv(x)), self.width, 1)
        return self.head(torch.cat([self.middle(first), second], 1))


@enter(prunable=("conv1", "convs.0", "convs.1"), frozen=("fc",), units={"conv1": 4, "convs.0": 4, "convs.1": 4})
class Res2NetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width = 4
        self.conv1 = nn.Conv2d(3, 12, 1)
        self.bn1 = nn.BatchNorm2d(12)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.bns = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.conv3 = nn.Conv2d(12, 10, 1)
        self.fc = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(F.relu(self.bn1(self.conv1(x))), self.width, 1)
        outputs: list[Tensor] = []
        y = parts[0]
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            y = parts[i] if i == 0 else y + parts[i]
            y = F.relu(bn(conv(y)))
            outputs.append(y)
        outputs.append(parts[-1])
        return self.fc(F.relu(self.conv3(torch.cat(outputs, 1))).mean((2, 3)))


class PartialConv(nn.Module):
    """FasterNet: only the first channels are convolved."""

    def __init__(self, width: int, divisor: int) -> None:
        super().__init__()
        self.dim_conv = width // divisor
        self.dim_untouched = width - self.dim_conv
        self.conv = nn.Conv2d(self.dim_conv, self.dim_conv, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(x, [self.dim_conv, self.dim_untouched], dim=1)
        return torch.cat((self.conv(first), second), 1)


@enter(prunable=("stem", "expand", "reduce"), frozen=("fc",), units={"stem": 3, "expand": 16, "reduce": 3})
class FasterNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3)
        self.partial = PartialConv(12, 4)
        self.expand = nn.Conv2d(12, 16, 1)
        self.bn = nn.BatchNorm2d(16)
        self.reduce = nn.Conv2d(16, 12, 1)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.reduce(F.relu(self.bn(self.expand(self.partial(x)))))
        return self.fc(x.mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class ViewGroups(nn.Module):
    """view(b, self.groups, -1, h, w): a number of parts that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = 2
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        b, _, h, w = x.shape
        return self.head(x.view(b, self.groups, -1, h, w).sum(1))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class ViewGroupWidth(nn.Module):
    """view(b, -1, self.group_width, h, w): a width that shrinks, or a number of parts that does."""

    def __init__(self) -> None:
        super().__init__()
        self.group_width = 4
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        b, c, h, w = x.shape
        x = x.view(b, -1, self.group_width, h, w).transpose(1, 2)
        return self.head(x.reshape(b, c, h, w))


@enter(prunable=("conv",), frozen=("fc",), units={"conv": 6})
class FlattenByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = 6
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.conv(x)), 1)
        return self.fc(x.view(-1, self.features))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class ViewChannelsAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.channels = 6
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Conv1d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).view(x.shape[0], self.channels, -1))


@enter((2, 5), prunable=("fc", "conv"), frozen=("head",), units={"fc": 6, "conv": 7})
class DecoderByAttribute(nn.Module):
    """linear -> view(B, C, H, W) -> conv, the number of channels being an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = 6
        self.fc = nn.Linear(5, 6 * 4 * 4)
        self.conv = nn.ConvTranspose2d(6, 7, 2, stride=2)
        self.head = nn.Conv2d(7, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc(x)).view(-1, self.channels, 4, 4)
        return self.head(F.relu(self.conv(x)))


@enter((2, 5), prunable=("fc",), frozen=("head",), units={"fc": 6})
class DecoderByInference(nn.Module):
    """The same with view(B, -1, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 6 * 4 * 4)
        self.bn = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.fc(x).view(x.shape[0], -1, 4, 4))))


class PaddedShortcut(nn.Module):
    """Option A: subsample, append zero channels; their number is an attribute."""

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.pad = pad

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.pad))


@enter(prunable=("stem", "block1.0", "block1.2", "block2.0", "block2.2"), frozen=("fc",), units={"block1.0": 5})
class OptionAShortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.block1 = nn.Sequential(nn.Conv2d(6, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 6, 3, padding=1))
        self.block2 = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1))
        self.shortcut = PaddedShortcut(6)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.block1(x))
        x = F.relu(self.shortcut(x) + self.block2(x))
        return self.fc(x.mean((2, 3)))


@enter(prunable=("stem", "conv2"), frozen=("fc",), units={"stem": 6})
class OptionAConcatenated(nn.Module):
    """Zero channels appended as `x.mul(0)`: as many as there are channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 12, 3, padding=1, stride=2)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = x[:, :, ::2, ::2]
        x = F.relu(torch.cat((y, y.mul(0)), 1) + self.conv2(x))
        return self.fc(x.mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class HeadsByAttribute(nn.Module):
    """view(b, self.heads, self.head_dim, -1): the usual multi-head layout, one of the two shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.head_dim = 2, 4
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        x = F.relu(self.conv(x)).view(b, self.heads, self.head_dim, -1).mean(-1)
        return self.head(x.reshape(b, self.heads * self.head_dim))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class BlurByChannels(nn.Module):
    """A fixed blur filter, kept as a depthwise buffer, with the number of groups as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = 6
        self.conv = nn.Conv2d(3, 6, 3)
        row = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("filt", (row[:, None] * row[None] / 16).repeat(6, 1, 1, 1))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.relu(self.conv(x)), (1, 1, 1, 1), mode="reflect")
        return self.head(F.conv2d(x, self.filt, stride=2, groups=self.channels))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class BlurByShape(nn.Module):
    """The same with `groups=x.shape[1]`, on a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.register_buffer("kernel", torch.rand(6, 1, 3, 3), persistent=False)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(F.conv2d(x, self.kernel, groups=x.shape[1]))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class BlurExpanded(nn.Module):
    """One filter for all channels, expanded to as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.register_buffer("kernel", torch.rand(1, 1, 3, 3))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(F.conv2d(x, self.kernel.expand(x.shape[1], -1, -1, -1), groups=x.shape[1]))
