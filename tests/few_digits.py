"""Fewer digits and a smaller network, for tests of long ways: `--data few_digits.py:build`, `few_digits.NET`."""

from __future__ import annotations

from dataclasses import replace

from lcprune import data
from lcprune.data import Dataset
from lcprune.models.networks import ResNet

INPUT_SHAPE = (1, 8, 8)
NET = f"{__file__}:net"  # as the command line and `models.build` take it


def build() -> Dataset:
    """522 images to train on and 58 held out, which makes four steps of 128; the test images are all there."""
    whole = data.load("digits", val=0)
    return data.hold_out(replace(whole, train=whole.train.subset(range(580))))


def net(num_classes: int = 10) -> ResNet:
    """`digits_resnet` with one block per stage instead of two."""
    return ResNet(1, num_classes=num_classes, in_channels=1)
