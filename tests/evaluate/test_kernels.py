"""The GPU kernel against float64, in every shape that a network may ask for."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import conv2d

from lcprune.evaluate import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not kernels.available(), reason="needs triton"),
]

# in, out, height, taps, stride, padding, dilation
SHAPES = [
    (16, 16, 32, 3, 1, 1, 1),
    (3, 16, 32, 3, 1, 1, 1),
    (16, 32, 16, 3, 2, 1, 1),
    (20, 24, 7, 3, 1, 2, 2),
    (70, 40, 5, 1, 1, 0, 1),
    (3, 64, 23, 7, 2, 3, 1),
    (128, 256, 6, 3, 1, 1, 1),
    (130, 200, 4, 1, 2, 0, 1),
]


def problem(shape, dtype, scale: float = 1.0):
    channels, outputs, height, taps, stride, padding, dilation = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).cuda().to(dtype)

    x, weight, bias = (
        normal(5, channels, height, height + 1) * scale,
        normal(outputs, channels, taps, taps),
        normal(outputs),
    )
    settings = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (dilation, dilation)}
    plain = conv2d(x.double(), weight.double(), bias.double(), **settings)
    return x, weight, bias, normal(*plain.shape), settings, plain


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0), (-2.5, 0.75)], ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_it_computes_what_the_separate_steps_do(shape, dtype, tolerance, bounds, add) -> None:
    x, weight, bias, other, settings, plain = problem(shape, dtype)
    expected = (plain + other.double() if add else plain).clamp(*bounds)
    made = kernels.convolution(x, weight, bias, other if add else None, **settings, bounds=bounds)
    assert made.dtype == dtype and made.is_contiguous(memory_format=torch.channels_last)
    assert (made.double() - expected).abs().max() <= tolerance * plain.abs().max()


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_float32_stays_float32_for_large_and_small_numbers(scale) -> None:
    x, weight, bias, _, settings, plain = problem(SHAPES[0], torch.float32, scale)
    made = kernels.convolution(x, weight, bias, **settings)
    assert (made.double() - plain).abs().max() <= 3e-6 * plain.abs().max()


@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0)], ids=str)
def test_what_halves_cannot_hold_is_not_a_number(bounds) -> None:
    x, weight, bias, _, settings, _ = problem(SHAPES[0], torch.float32)
    x[2, 3] = 1e6
    made = kernels.convolution(x, weight, bias, **settings, bounds=bounds)
    assert made[2].isnan().all() and made[[0, 1, 3, 4]].isfinite().all()
