"""Residual networks for small images: ResNet-20/32/44/56/110 and a small one for 8x8 digits.

Deep Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385, section 4.2. The shortcuts are
option A: no weights, stride-2 subsampling, zero channels for the missing ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class PadShortcut(nn.Module):
    """The option-A shortcut: subsample in space, append zero channels after the existing ones.

    The number of output channels is an attribute that `forward` reads, so that it can follow a network whose
    channels were pruned; zeros come last, so that the existing channels keep their positions.

    Args:
        out_channels: channels of the sum that this shortcut feeds.
        stride: spatial subsampling.
    """

    def __init__(self, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        missing = x.new_zeros(x.shape[0], self.out_channels - x.shape[1], x.shape[2], x.shape[3])
        return torch.cat([x, missing], dim=1)

    def extra_repr(self) -> str:
        return f"out_channels={self.out_channels}, stride={self.stride}"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        same = stride == 1 and in_channels == channels
        self.shortcut: nn.Module = nn.Identity() if same else PadShortcut(channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of basic blocks at full, half and quarter resolution: 6 * blocks + 2 layers.

    ResNet-56 has 125.486 M MACs and 0.853 M parameters.
    """

    def __init__(self, blocks: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(functional.adaptive_avg_pool2d(out, 1).flatten(1))


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))
