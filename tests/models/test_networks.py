"""The paper's networks: their cost, their shortcuts, and that no size is written into a forward."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lcprune import models


@pytest.mark.parametrize(
    ("name", "macs", "params"),
    [
        ("resnet20", 40.551e6, 0.270e6),
        ("resnet56", 125.486e6, 0.853e6),
        ("resnet110", 252.888e6, 1.728e6),
        ("vgg16", 313.726e6, 15.249e6),
        ("mobilenetv2", 265.692e6, 2.237e6),
    ],
)
def test_macs_and_parameters_are_the_papers(name: str, macs: float, params: float) -> None:
    model = models.build(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        output = model(models.example_input(name))
    assert output.shape == (1, 10)
    assert counter.get_total_flops() / 2 == pytest.approx(macs, abs=500)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(params, abs=500)


def test_mobilenetv2_ends_with_8x8_maps_and_has_17000_filters() -> None:
    model = models.build("mobilenetv2").eval()
    assert model.features(models.example_input("mobilenetv2")).shape[-2:] == (8, 8)
    filters = sum(m.out_channels for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    assert filters == pytest.approx(17_000, rel=0.01)


def test_pad_shortcut_appends_zeros_and_follows_its_attribute() -> None:
    shortcut = models.PadShortcut(out_channels=5, stride=2)
    x = torch.randn(2, 3, 4, 4)
    out = shortcut(x)
    assert torch.equal(out[:, :3], x[:, :, ::2, ::2])
    assert not out[:, 3:].any()
    shortcut.out_channels = 3
    assert shortcut(x).shape[1] == 3


@pytest.mark.parametrize("name", models.names())
def test_every_network_trains_and_takes_other_classes(name: str) -> None:
    model = models.build(name, num_classes=7)
    model(models.example_input(name, batch_size=2)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.get_submodule(models.head_name(model)).out_features == 7
