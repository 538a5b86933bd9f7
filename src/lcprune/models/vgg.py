"""VGG with 13 convolutions for 32x32 images.

Very Deep Convolutional Networks for Large-Scale Image Recognition, https://arxiv.org/abs/1409.1556, layout D
(VGG-16) with batch normalisation and a 512-512-10 classifier: 313.726 M MACs.
"""

from __future__ import annotations

from torch import Tensor, nn

_LAYOUT: tuple[tuple[int, ...], ...] = (
    (64, 64),
    (128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (512, 512, 512),
)


class VGG(nn.Module):
    """Stages of 3x3 convolutions, each followed by batch normalisation and ReLU, then pooled by two.

    Args:
        dropout: before the first two linear layers; 0 as in the usual CIFAR recipe with batch normalisation.
    """

    def __init__(self, num_classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in _LAYOUT:
            for width in stage:
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(channels, 512),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
