"""What joined convolutions leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lcprune.evaluate import kernels
from lcprune.evaluate.fuse import Fused


@pytest.mark.cpu_bf16
def test_additions_of_another_type_stay_apart() -> None:
    class Promotes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1, dtype=torch.bfloat16)

        def forward(self, x):
            return self.conv(x.bfloat16()) + x

    model, x = Promotes().eval().requires_grad_(False), torch.randn(2, 3, 4, 4)
    made = Fused(model)(x)
    assert made.dtype == torch.float32 and torch.equal(made, model(x))


def test_the_kernel_is_not_asked_to_count_beyond_32_bits() -> None:
    assert kernels.counts((500, 3, 224, 224), 64, (3, 3))
    assert not kernels.counts((3000, 64, 112, 112), 64, (1, 1))
