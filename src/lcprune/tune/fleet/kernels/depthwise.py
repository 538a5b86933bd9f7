"""Convolutions of each channel by itself, and their gradients: additions at the speed of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from lcprune.tune.fleet.kernels.common import LAST, compiled, power, tl, triton


def depthwise(
    x: Tensor, weight: Tensor, stride: int, padding: int, up: int = 1, size: tuple[int, int] | None = None,
    sums: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """As `convolution`, each channel by itself; weight is (members, taps, taps, channels)."""
    members, taps, _, channels = weight.shape
    height, width = x.shape[2:]
    out = size or tuple((side + 2 * padding - taps) // stride + 1 for side in (height, width))
    y = torch.empty((x.shape[0], channels, *out), dtype=x.dtype, device=x.device, memory_format=LAST)
    rows = x.shape[0] // members * out[0] * out[1]
    wide = min(64, power(channels))
    grid = (triton.cdiv(rows, 4096 // wide), triton.cdiv(channels, wide), members)
    part = torch.empty((members, grid[0], 2, channels), dtype=torch.float32, device=x.device) if sums else None
    compiled(_depthwise)[grid](
        x, weight, y, y if part is None else part, rows, height, width, *out, stride, padding, x.shape[0] // members,
        channels, taps, up, sums, 4096 // wide, wide,
    )  # fmt: skip
    return y, part


def depthwise_gradient(dy: Tensor, x: Tensor, members: int, taps: int, stride: int, padding: int) -> Tensor:
    """The gradient of the weights, (members, taps, taps, channels) in float32."""
    channels, (height, width) = x.shape[1], dy.shape[2:]
    rows = dy.shape[0] // members * height * width
    wide = min(64, power(channels))
    each = max(1024, min(8192, power(rows) // 16))
    blocks = triton.cdiv(rows, each)
    part = torch.empty((members, blocks, taps, taps, channels), dtype=torch.float32, device=x.device)
    compiled(_depthwise_gradient)[(taps * taps * triton.cdiv(channels, wide), blocks, members)](
        dy, x, part, rows, *x.shape[2:], height, width, stride, padding, each, blocks, x.shape[0] // members,
        channels, taps, 2048 // wide, wide,
    )  # fmt: skip
    return part.sum(1)


def _depthwise(  # type: ignore[no-untyped-def]
    x, weight, y, part, rows, height, width, out_height, out_width, stride, padding, batch,
    C: tl.constexpr, TAPS: tl.constexpr, UP: tl.constexpr, SUMS: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    x += member * batch * height * width * C
    y += member * rows * C
    weight += member * (TAPS * TAPS * C)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    image = row // (out_width * out_height)
    top = ((row // out_width) % out_height) * stride - padding
    left = (row % out_width) * stride - padding
    inside = row < rows
    total = tl.zeros((ROWS, WIDE), dtype=tl.float32)
    for tap in range(TAPS * TAPS):
        in_y, in_x = top + tap // TAPS, left + tap % TAPS
        seen = inside & (in_y >= 0) & (in_x >= 0)
        if UP > 1:
            seen = seen & (in_y % UP == 0) & (in_x % UP == 0)
            in_y, in_x = in_y // UP, in_x // UP
        seen = (seen & (in_y < height) & (in_x < width))[:, None] & (c < C)[None, :]
        read = x + (((image * height + in_y) * width + in_x) * C)[:, None] + c[None, :]
        factor = tl.load(weight + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        total += tl.load(read, mask=seen, other=0.0).to(tl.float32) * factor[None, :]
    place = row[:, None] * C + c[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=inside[:, None] & (c < C)[None, :])
    if SUMS:
        part += (member * tl.num_programs(0) + tl.program_id(0)) * (2 * C) + c
        tl.store(part, tl.sum(total, 0), mask=c < C)
        tl.store(part + C, tl.sum(total * total, 0), mask=c < C)


def _depthwise_gradient(  # type: ignore[no-untyped-def]
    dy, x, part, rows, height, width, out_height, out_width, stride, padding, each, blocks, batch,
    C: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    x += member * batch * height * width * C
    dy += member * rows * C
    block = tl.program_id(1)
    tap = tl.program_id(0) % (TAPS * TAPS)
    c = (tl.program_id(0) // (TAPS * TAPS)) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), dtype=tl.float32)
    for step in range(0, each, ROWS):
        row = block * each + step + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (c < C)[None, :]
        image = row // (out_width * out_height)
        in_y = ((row // out_width) % out_height) * stride - padding + tap // TAPS
        in_x = (row % out_width) * stride - padding + tap % TAPS
        seen = inside & ((in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width))[:, None]
        a = tl.load(x + (((image * height + in_y) * width + in_x) * C)[:, None] + c[None, :], mask=seen, other=0.0)
        b = tl.load(dy + row[:, None] * C + c[None, :], mask=inside, other=0.0)
        total += tl.sum(a.to(tl.float32) * b.to(tl.float32), 0)
    tl.store(part + ((member * blocks + block) * (TAPS * TAPS) + tap) * C + c, total, mask=c < C)
