"""A network and data that train in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lcprune import data
from lcprune.data import Augmentation, Dataset

sys.path.insert(0, str(Path(__file__).parent))  # killed_training


class Small(nn.Module):
    """A convolution, batch norm, dropout and a classifier: everything whose state training must keep."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(6 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.dropout(torch.relu(self.bn(self.conv(x)))[:, :, ::2, ::2].flatten(1)))


@pytest.fixture
def small() -> Callable[..., Small]:
    def make(**arguments: float) -> Small:
        torch.manual_seed(0)
        return Small(**arguments)

    return make


@pytest.fixture(scope="session")
def blobs() -> Dataset:
    """Four classes: which quadrant is bright."""
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 4
    images = generator.integers(0, 120, (240, 8, 8, 1), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = divmod(int(label), 2)
        image[4 * top : 4 * top + 4, 4 * left : 4 * left + 4] += 110
    arrays = {
        "x_train": images[:200],
        "y_train": labels[:200],
        "x_test": images[200:],
        "y_test": labels[200:],
    }
    return data.hold_out(data.from_arrays("blobs", arrays, augmentation=Augmentation(1, False)), val=40)
