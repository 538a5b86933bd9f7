"""The paper's networks for 32x32 images, and a small ResNet for 8x8 digits.

- ResNet-20/32/44/56/110: https://arxiv.org/abs/1512.03385, section 4.2, with option-A shortcuts: no weights, stride-2
  subsampling, zero channels for the missing ones. ResNet-56 has 125.486 M MACs and 0.853 M parameters.
- VGG with 13 convolutions: https://arxiv.org/abs/1409.1556, layout D (VGG-16), with batch normalisation and a
  512-512-10 classifier: 313.726 M MACs.
- MobileNetV2: https://arxiv.org/abs/1801.04381, table 2, with stride 1 in the first convolution and in blocks two and
  four, so that the last maps are 8x8: 265.692 M MACs.
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
    """Three stages of basic blocks at full, half and quarter resolution: 6 * blocks + 2 layers."""

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


class VGG(nn.Module):
    """Stages of 3x3 convolutions of one width, each stage pooled by two; three linear layers."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(0.0),  # the usual CIFAR recipe has none; names in weight files count these two
            nn.Linear(channels, 512),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )
        _normal_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class InvertedResidual(nn.Module):
    """Expand with 1x1, filter depth-wise with 3x3, project with 1x1; an `expansion` of 1 leaves the first out."""

    def __init__(self, in_channels: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = in_channels * expansion
        layers = _conv(in_channels, width, 1) if expansion != 1 else []
        layers += _conv(width, width, 3, stride=stride, groups=width)
        layers += [nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


# expansion, channels, blocks, stride of the first block
_INVERTED = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 1), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(nn.Module):
    """Inverted residual blocks between a 3x3 and a 1x1 convolution."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*_conv(3, 32, 3))]
        channels = 32
        for expansion, width, blocks, stride in _INVERTED:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, width, expansion, stride if block == 0 else 1))
                channels = width
        layers.append(nn.Sequential(*_conv(channels, 1280, 1)))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, num_classes)
        _normal_convolutions(self)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def _conv(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU6()]


def _normal_convolutions(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
