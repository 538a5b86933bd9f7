"""Convolution, bias, residual addition and ReLU as one GPU kernel, for the thin layers that cuDNN serves badly.

A network with 16 channels is judged at the speed of memory, if nothing is written twice and channels lie
innermost. A convolution is one matrix product, (image, row, column) x (tap, channel), on tensor cores. There
float32 would be rounded to ten or eight bits. So each float32 number is split into two halves,
`high + low / 2048`, 22 bits in all, and three products are added up: as accurate as float32 arithmetic, if
nothing exceeds what a half can hold (65,504); beyond, results are not finite and never merely wrong. At the
other end numbers are resolved to about 1e-11, whatever their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None


def available() -> bool:
    """Whether kernels can be made here."""
    return triton is not None


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Tensor:
    """clamp(convolution(x, weight) + bias + other, *bounds), without groups, in channels-last layout.

    Images are in float32 or of half precision; bounds (0, inf) are ReLU, (0, 6) ReLU6.
    """
    last = torch.channels_last
    x, weight = x.contiguous(memory_format=last), weight.contiguous(memory_format=last)
    other = None if other is None else other.contiguous(memory_format=last)
    images, channels, height, width = x.shape
    outputs, _, taps_y, taps_x = weight.shape
    axes = zip((height, width), (taps_y, taps_x), stride, padding, dilation, strict=True)
    size = tuple((full + 2 * pad - dil * (taps - 1) - 1) // step + 1 for full, taps, step, pad, dil in axes)
    y = torch.empty((images, outputs, *size), dtype=x.dtype, device=x.device, memory_format=last)
    rows = images * size[0] * size[1]
    in_rows, in_columns, in_depth, warps, stages = block_sizes(channels, outputs, x.dtype)
    grid = (triton.cdiv(rows, in_rows), triton.cdiv(outputs, in_columns))
    _kernel()[grid](
        x, weight, y if bias is None else bias, y if other is None else other, y,
        rows, channels, outputs, height, width, *size, *stride, *padding, *dilation,
        int(bias is not None), int(other is not None), *bounds,
        taps_y, taps_x, channels % in_depth == 0, outputs % in_columns == 0, x.dtype == torch.float32,
        in_rows, in_columns, in_depth,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def counts(shape: Sequence[int], outputs: int, padding: Sequence[int]) -> bool:
    """Whether 32 bits, in which the kernel counts, can number what it reads (images of this shape) and writes."""
    images, channels, height, width = shape
    places = images * (height + 2 * padding[0]) * (width + 2 * padding[1])
    return places * max(channels, outputs) < 2**31


def prefers(channels: int, outputs: int, dtype: torch.dtype, relu: bool) -> bool:
    """Whether this kernel was faster than cuDNN's on an H200, which has a ReLU in the same kernel in half precision."""
    if channels < 8:  # a block's depth would be mostly empty
        return dtype != torch.float32 and outputs <= 32
    return dtype == torch.float32 or not relu or min(channels, outputs) < 64


def block_sizes(channels: int, outputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Rows, columns and depth of a block, warps and stages: the fastest of those tried on an H200."""
    if min(channels, outputs) >= 128:
        return 128, 128, 64, 8, 3
    columns = min(64, max(16, 1 << (outputs - 1).bit_length()))
    depth = min(32, max(16, 1 << (channels - 1).bit_length()))
    if dtype == torch.float32:
        return (64 if columns == 32 else 128), columns, depth, 4, 3
    return (256 if columns <= 32 else 128), columns, depth, 4, 3


@cache
def _kernel() -> Any:
    # Compiled once per block size, taps and precision: whatever else differs between layers is read at run time.
    return triton.jit(_convolution, do_not_specialize=_READ)


_READ = (
    *("rows", "height", "width", "out_height", "out_width", "stride_y", "stride_x"),
    *("pad_y", "pad_x", "dilation_y", "dilation_x", "has_bias", "has_other", "low", "high"),
)


def _convolution(  # type: ignore[no-untyped-def]
    x, weight, bias, other, y,
    rows, channels, outputs, height, width, out_height, out_width,
    stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, has_bias, has_other, low, high,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr,
    EVEN_DEPTH: tl.constexpr, EVEN_COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    image = row // (out_width * out_height)
    top = ((row // out_width) % out_height) * stride_y - pad_y
    left = (row % out_width) * stride_x - pad_x
    inside = row < rows
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    rest = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    blocks = tl.cdiv(channels, DEPTH)
    for step in range(TAPS_Y * TAPS_X * blocks):
        tap = step // blocks
        channel = (step % blocks) * DEPTH + tl.arange(0, DEPTH)
        in_y = top + (tap // TAPS_X) * dilation_y
        in_x = left + (tap % TAPS_X) * dilation_x
        seen = (inside & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width))[:, None]
        read = x + (((image * height + in_y) * width + in_x) * channels)[:, None] + channel[None, :]
        taken = weight + (out * (TAPS_Y * TAPS_X * channels) + tap * channels)[None, :] + channel[:, None]
        real = (channel < channels)[:, None] & (out < outputs)[None, :]
        a = tl.load(read, mask=seen if EVEN_DEPTH else seen & (channel < channels)[None, :], other=0.0)
        b = tl.load(taken) if EVEN_DEPTH and EVEN_COLUMNS else tl.load(taken, mask=real, other=0.0)
        if SPLIT:
            a_high, b_high = a.to(tl.float16), b.to(tl.float16)
            a_low = ((a - a_high.to(tl.float32)) * 2048.0).to(tl.float16)
            b_low = ((b - b_high.to(tl.float32)) * 2048.0).to(tl.float16)
            total = tl.dot(a_high, b_high, total)
            rest = tl.dot(a_high, b_low, rest)
            rest = tl.dot(a_low, b_high, rest)
        else:
            total = tl.dot(a, b, total)
    if SPLIT:
        total += rest * (1.0 / 2048.0)
    if has_bias:
        total += tl.load(bias + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * outputs + out[None, :]
    written = inside[:, None] & (out < outputs)[None, :]
    if has_other:
        total += tl.load(other + place, mask=written, other=0.0).to(tl.float32)
    # What is not a number stays so: it says that halves could not hold a number.
    total = tl.minimum(tl.maximum(total, low, tl.PropagateNan.ALL), high, tl.PropagateNan.ALL)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=written)
