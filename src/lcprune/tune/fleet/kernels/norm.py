"""Batch norm with the addition and the ReLU that follow it, and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from lcprune.tune.fleet.kernels.common import LAST, compiled, power, tl, triton


def statistics(
    part: Tensor, count: int, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """What batch norm makes of `convolution`'s sums; running statistics move on in place.

    Gives (2, members, channels): scale and shift; and (2, members, channels): mean and 1 / deviation.
    """
    members, blocks, _, channels = part.shape
    made = torch.empty((2, 2, members, channels), dtype=torch.float32, device=part.device)
    compiled(_statistics)[(members, triton.cdiv(channels, 16))](
        part, weight, bias, mean, var, made, blocks, channels, members, count, epsilon, momentum, 128, 16
    )
    return made[0], made[1]


def normalise(y: Tensor, other: Tensor | None, scaled: Tensor, top: float) -> Tensor:
    """y * scale + shift (+ other), clamped to 0 and `top`: infinity for ReLU, 6 for ReLU6; not at all where it is 0."""
    z = torch.empty_like(y, memory_format=LAST)
    members, channels = scaled.shape[1:]
    grid, (rows, block, wide) = _tiles(y, members)
    compiled(_normalise)[grid](
        y, y if other is None else other, scaled, z, rows, members, top, other is not None, top > 0,
        channels, block, wide,
    )  # fmt: skip
    return z


def norm_gradient(
    dz: Tensor, y: Tensor, z: Tensor | None, weight: Tensor, scaled: Tensor, seen: Tensor, top: float, other: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of y, of what was added, of the weights and of the biases, given that of the result.

    Args:
        y: what was normalised.
        z: the result, needed where something was added and a ReLU followed.
        scaled, seen: as `statistics` gave.
        top: as for `normalise`.
        other: whether something was added.
    """
    members, channels = weight.shape
    grid, (rows, block, wide) = _tiles(y, members, most=512)
    each = triton.cdiv(triton.cdiv(rows, grid[0]), block) * block
    part = torch.empty((members, grid[0], 2, channels), dtype=torch.float32, device=y.device)
    mask = 0 if top == 0 else 1 if z is None else 2
    z = y if z is None else z
    compiled(_norm_sums)[grid](dz, y, z, scaled, seen, part, rows, members, each, top, mask, channels, block, wide)
    made = torch.empty((4, members, channels), dtype=torch.float32, device=y.device)
    compiled(_norm_factors)[(members, triton.cdiv(channels, 16))](
        part, seen, made, grid[0], channels, members, rows, 128, 16
    )
    dy = torch.empty_like(y, memory_format=LAST)
    # Where a ReLU is between, what was added has another gradient than the result.
    added = torch.empty_like(y, memory_format=LAST) if other and mask else None
    grid, (rows, block, wide) = _tiles(y, members)
    compiled(_norm_gradient)[grid](
        dz, y, z, scaled, seen, made, dy, dy if added is None else added,
        rows, members, top, mask, added is not None, channels, block, wide,
    )  # fmt: skip
    return dy, (added if mask else dz) if other else None, made[0], made[1]


def _tiles(y: Tensor, members: int, most: int | None = None) -> tuple[tuple[int, int], tuple[int, int, int]]:
    channels = y.shape[1]
    rows = y.numel() // channels // members
    wide = power(channels)
    block = max(1, 4096 // wide)
    count = triton.cdiv(rows, block)
    if most is not None and count * members > most * 4:
        count = max(1, most * 4 // members)
    return (count, members), (rows, block, wide)


def _statistics(  # type: ignore[no-untyped-def]
    part, weight, bias, mean, var, made, blocks, channels, members, count, epsilon, momentum,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    real = c < channels
    one = tl.zeros((WIDE,), dtype=tl.float64)
    two = tl.zeros((WIDE,), dtype=tl.float64)
    for first in range(0, blocks, ROWS):
        block = first + tl.arange(0, ROWS)
        at = part + ((member * blocks + block) * 2 * channels)[:, None] + c[None, :]
        mask = (block < blocks)[:, None] & real[None, :]
        one += tl.sum(tl.load(at, mask=mask, other=0.0).to(tl.float64), 0)
        two += tl.sum(tl.load(at + channels, mask=mask, other=0.0).to(tl.float64), 0)
    middle = one / count
    spread = tl.maximum(two / count - middle * middle, 0.0)
    at = member * channels + c
    inverse = (1.0 / tl.sqrt(spread + epsilon)).to(tl.float32)
    scale = tl.load(weight + at, mask=real, other=0.0) * inverse
    shift = tl.load(bias + at, mask=real, other=0.0) - middle.to(tl.float32) * scale
    stride = members * channels
    tl.store(made + at, scale, mask=real)
    tl.store(made + stride + at, shift, mask=real)
    tl.store(made + 2 * stride + at, middle.to(tl.float32), mask=real)
    tl.store(made + 3 * stride + at, inverse, mask=real)
    unbiased = (spread * count / (count - 1)).to(tl.float32)
    old_mean = tl.load(mean + at, mask=real, other=0.0)
    old_var = tl.load(var + at, mask=real, other=0.0)
    tl.store(mean + at, old_mean + momentum * (middle.to(tl.float32) - old_mean), mask=real)
    tl.store(var + at, old_var + momentum * (unbiased - old_var), mask=real)


def _normalise(  # type: ignore[no-untyped-def]
    y, other, scaled, z, rows, members, top,
    OTHER: tl.constexpr, RELU: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, WIDE)
    real = c < C
    scale = tl.load(scaled + member * C + c, mask=real, other=0.0)
    shift = tl.load(scaled + (members + member) * C + c, mask=real, other=0.0)
    place = member * rows * C + row[:, None] * C + c[None, :]
    mask = (row < rows)[:, None] & real[None, :]
    value = tl.load(y + place, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if OTHER:
        value += tl.load(other + place, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = tl.minimum(tl.maximum(value, 0.0, tl.PropagateNan.ALL), top, tl.PropagateNan.ALL)
    tl.store(z + place, value.to(z.dtype.element_ty), mask=mask)


def _norm_sums(  # type: ignore[no-untyped-def]
    dz, y, z, scaled, seen, part, rows, members, each, top,
    MASK: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, WIDE)
    real = c < C
    scale = tl.load(scaled + member * C + c, mask=real, other=0.0)
    shift = tl.load(scaled + (members + member) * C + c, mask=real, other=0.0)
    mean = tl.load(seen + member * C + c, mask=real, other=0.0)
    one = tl.zeros((WIDE,), dtype=tl.float32)
    two = tl.zeros((WIDE,), dtype=tl.float32)
    for first in range(0, each, BLOCK):
        row = tl.program_id(0) * each + first + tl.arange(0, BLOCK)
        place = member * rows * C + row[:, None] * C + c[None, :]
        mask = (row < rows)[:, None] & real[None, :]
        g = tl.load(dz + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
        if MASK > 0:
            result = value * scale[None, :] + shift[None, :]
            if MASK == 2:
                result = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
            g = tl.where((result > 0) & (result < top), g, 0.0)
        one += tl.sum(g, 0)
        two += tl.sum(g * (value - mean[None, :]), 0)
    at = part + (member * tl.num_programs(0) + tl.program_id(0)) * (2 * C) + c
    tl.store(at, one, mask=real)
    tl.store(at + C, two, mask=real)


def _norm_factors(  # type: ignore[no-untyped-def]
    part, seen, made, blocks, channels, members, count, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    member = tl.program_id(0)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    real = c < channels
    one = tl.zeros((WIDE,), dtype=tl.float32)
    two = tl.zeros((WIDE,), dtype=tl.float32)
    for first in range(0, blocks, ROWS):
        block = first + tl.arange(0, ROWS)
        at = part + ((member * blocks + block) * 2 * channels)[:, None] + c[None, :]
        mask = (block < blocks)[:, None] & real[None, :]
        one += tl.sum(tl.load(at, mask=mask, other=0.0), 0)
        two += tl.sum(tl.load(at + channels, mask=mask, other=0.0), 0)
    at = member * channels + c
    stride = members * channels
    inverse = tl.load(seen + stride + at, mask=real, other=0.0)
    # Gradients of weights and biases; then the means that are taken from the gradient of the result.
    tl.store(made + at, two * inverse, mask=real)
    tl.store(made + stride + at, one, mask=real)
    tl.store(made + 2 * stride + at, one / count, mask=real)
    tl.store(made + 3 * stride + at, two * inverse * inverse / count, mask=real)


def _norm_gradient(  # type: ignore[no-untyped-def]
    dz, y, z, scaled, seen, made, dy, added, rows, members, top,
    MASK: tl.constexpr, ADDED: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, WIDE)
    real = c < C
    at = member * C + c
    stride = members * C
    scale = tl.load(scaled + at, mask=real, other=0.0)
    shift = tl.load(scaled + stride + at, mask=real, other=0.0)
    mean = tl.load(seen + at, mask=real, other=0.0)
    first = tl.load(made + 2 * stride + at, mask=real, other=0.0)
    second = tl.load(made + 3 * stride + at, mask=real, other=0.0)
    place = member * rows * C + row[:, None] * C + c[None, :]
    mask = (row < rows)[:, None] & real[None, :]
    g = tl.load(dz + place, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
    if MASK > 0:
        result = value * scale[None, :] + shift[None, :]
        if MASK == 2:
            result = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.where((result > 0) & (result < top), g, 0.0)
    if ADDED:
        tl.store(added + place, g.to(added.dtype.element_ty), mask=mask)
    value = scale[None, :] * (g - first[None, :] - (value - mean[None, :]) * second[None, :])
    tl.store(dy + place, value.to(dy.dtype.element_ty), mask=mask)
