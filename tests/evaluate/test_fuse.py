"""What is joined with convolutions, and what joined convolutions leave alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lcprune.evaluate import kernels
from lcprune.evaluate.fuse import Fused, joined

ACTIVATIONS = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "hardtanh from -1": lambda x: functional.hardtanh(x, -1, 0.5),
    "hardtanh to 1": lambda x: functional.hardtanh(x, -0.5, 1),
    "clamp": lambda x: x.clamp(-0.2, 0.3),
    "clamp from below": lambda x: x.clamp(min=0.2),
    "clamp from above": lambda x: x.clamp_(max=0.3),
}


class Follows(nn.Module):
    """A convolution, an addition and an activation."""

    def __init__(self, activation) -> None:
        super().__init__()
        self.conv, self.activation = nn.Conv2d(8, 8, 3, padding=1), activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.activation(self.conv(x) + x)
        return found


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_bounds_its_input_is_joined_and_computes_the_same(name: str, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    model = Follows(ACTIVATIONS[name]).eval().requires_grad_(False).to(device)
    x = torch.randn(2, 8, 6, 6, device=device)
    wanted = copy.deepcopy(model).double()(x.double())
    fused = Fused(model)
    assert (fused(x).double() - wanted).abs().max() <= 1e-5
    (recorded,) = fused._recorded.values()
    assert [node.target for node in recorded.graph.nodes if node.op == "call_function"] == [joined]


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
