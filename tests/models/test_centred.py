"""Weights trained with zeros on both sides of the shortcut compute the same after conversion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lcprune import models
from lcprune.errors import ModelError


class CentredShortcut(nn.Module):
    """The shortcut of the trainings in question."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels // 4, self.channels // 4))


def test_converted_weights_compute_the_same() -> None:
    centred = models.build("resnet20").eval()
    centred.layer2[0].shortcut = CentredShortcut(32)
    centred.layer3[0].shortcut = CentredShortcut(64)
    for module in centred.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
    x = models.example_input("resnet20", batch_size=2)
    state = {f"module.{name}": value for name, value in centred.state_dict().items()}
    ours = models.build("resnet20", weights=models.from_centred(state)).eval()
    as_it_is = models.build("resnet20", weights=state).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), centred(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(as_it_is(x), centred(x), atol=0.1), "the conversion is needed"


def test_other_weights_are_refused() -> None:
    with pytest.raises(ModelError, match="not the weights of a CIFAR ResNet"):
        models.from_centred({"conv1.weight": torch.zeros(1)})
