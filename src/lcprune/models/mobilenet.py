"""MobileNetV2 for 32x32 images.

MobileNetV2: Inverted Residuals and Linear Bottlenecks, https://arxiv.org/abs/1801.04381, table 2, with
stride 1 in the first convolution and in blocks two and four, so that the last maps are 8x8: 265.692 M MACs.
"""

from __future__ import annotations

from torch import Tensor, nn

# expansion, channels, blocks, stride of the first block
_LAYOUT = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 1),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand with 1x1, filter depth-wise with 3x3, project with 1x1.

    Args:
        expansion: factor of the inner width; 1 leaves the first convolution out.
    """

    def __init__(self, in_channels: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += _conv(in_channels, width, 1)
        layers += _conv(width, width, 3, stride=stride, groups=width)
        layers += [nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """Inverted residual blocks between a 3x3 and a 1x1 convolution."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*_conv(3, 32, 3))]
        channels = 32
        for expansion, width, blocks, stride in _LAYOUT:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, width, expansion, stride if block == 0 else 1))
                channels = width
        layers.append(nn.Sequential(*_conv(channels, 1280, 1)))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def _conv(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
    ]
