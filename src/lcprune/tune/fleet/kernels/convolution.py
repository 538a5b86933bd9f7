"""Convolutions without groups, or of each channel by itself, their gradients, and the sums that batch norm begins with.

Images are (members * batch, channels, height, width), channels last, in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lcprune.tune.fleet.kernels.common import LAST, compiled, power, tl, triton


def fits(images: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Whether `convolution` and its gradients can do this layer with weights (members, out, channels, taps, taps)."""
    places = (images.shape[0] // weight.shape[0]) * (images.shape[2] + 2 * padding) * (images.shape[3] + 2 * padding)
    return weight.shape[3] == weight.shape[4] and places * max(weight.shape[1:3]) < 2**31


def convolution(
    x: Tensor, weight: Tensor, stride: int, padding: int, up: int = 1, size: tuple[int, int] | None = None,
    sums: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Convolve each member's images with its weights (members, out, taps, taps, channels), contiguous.

    Args:
        up: spread the images so far apart before, with zeros in between; 2 makes the gradient of stride 2.
        size: height and width of the result where they do not follow.
        sums: add up the result and its squares per member, block and channel: float32 (members, blocks, 2, out).
    """
    members, outputs, taps, _, channels = weight.shape
    height, width = x.shape[2:]
    out = size or tuple((side + 2 * padding - taps) // stride + 1 for side in (height, width))
    y = torch.empty((x.shape[0], outputs, *out), dtype=x.dtype, device=x.device, memory_format=LAST)
    rows = x.shape[0] // members * out[0] * out[1]
    in_rows, columns, depth, warps, stages = block_sizes(channels, outputs)
    grid = (triton.cdiv(rows, in_rows), triton.cdiv(outputs, columns), members)
    part = torch.empty((members, grid[0], 2, outputs), dtype=torch.float32, device=x.device) if sums else None
    compiled(_convolution)[grid](
        x, weight, y, y if part is None else part, rows, height, width, *out, stride, padding,
        x.shape[0] // members, channels, outputs, taps, up, sums, in_rows, columns, depth,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, part


def weight_gradient(dy: Tensor, x: Tensor, members: int, taps: int, stride: int, padding: int) -> Tensor:
    """The gradient of the weights, (members, out, taps, taps, channels) in float32."""
    outputs, channels = dy.shape[1], x.shape[1]
    height, width = dy.shape[2:]
    rows = dy.shape[0] // members * height * width
    wide = taps * channels
    in_rows, depth, columns, each, warps, stages = gradient_sizes(wide, outputs, rows)
    blocks = triton.cdiv(rows, each)
    cells = triton.cdiv(wide, depth) * triton.cdiv(outputs, columns)
    part = torch.empty((members, blocks, outputs, taps, taps, channels), dtype=torch.float32, device=x.device)
    compiled(_weight_gradient)[(taps * cells, blocks, members)](
        dy, x, part, rows, *x.shape[2:], height, width, stride, padding, each, blocks,
        x.shape[0] // members, channels, outputs, taps, in_rows, depth, columns,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return part.sum(1)


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


def block_sizes(channels: int, outputs: int) -> tuple[int, ...]:
    """Rows, columns, depth, warps and stages of a convolution: the fastest of those tried on an H200."""
    if min(channels, outputs) >= 128:
        return 128, 128, 64, 8, 3
    columns = min(64, max(16, power(outputs)))
    depth = min(32, max(16, power(channels)))
    return (256 if columns <= 32 else 128), columns, depth, 4, 3


def gradient_sizes(wide: int, outputs: int, rows: int) -> tuple[int, ...]:
    """Rows, depth, columns, rows of a whole block, warps and stages of the weights' gradient."""
    columns = min(64, max(16, power(outputs)))
    depth = (128 if columns == 32 else 64) if wide > 32 else max(16, power(wide))
    return 64, depth, columns, max(1024, min(8192, power(rows) // 16)), 4, 3


def _convolution(  # type: ignore[no-untyped-def]
    x, weight, y, part, rows, height, width, out_height, out_width, stride, padding, batch,
    C: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, UP: tl.constexpr, SUMS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    x += member * batch * height * width * C
    y += member * rows * OUT
    weight += member * (OUT * TAPS * TAPS * C)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    image = row // (out_width * out_height)
    top = ((row // out_width) % out_height) * stride - padding
    left = (row % out_width) * stride - padding
    inside = row < rows
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # Taps of a row are read together, unless the images are spread apart.
    WIDE: tl.constexpr = C if UP > 1 else TAPS * C
    BLOCKS: tl.constexpr = (WIDE + DEPTH - 1) // DEPTH
    STEPS: tl.constexpr = (TAPS * TAPS if UP > 1 else TAPS) * BLOCKS
    for step in range(STEPS):
        tap = step // BLOCKS
        d = (step % BLOCKS) * DEPTH + tl.arange(0, DEPTH)
        if UP > 1:
            in_y, in_x = top + tap // TAPS, left + tap % TAPS
            seen = inside & (in_y % UP == 0) & (in_x % UP == 0) & (in_y >= 0) & (in_x >= 0)
            in_y, in_x = in_y // UP, in_x // UP
            seen = (seen & (in_y < height) & (in_x < width))[:, None]
            if WIDE % DEPTH != 0:
                seen = seen & (d < WIDE)[None, :]
        else:
            in_y, in_x = top + tap, left
            seen = inside & (in_y >= 0) & (in_y < height)
            if C % DEPTH == 0:  # one tap at a time
                at = in_x + (step % BLOCKS) * DEPTH // C
                seen = (seen & (at >= 0) & (at < width))[:, None]
            else:
                at = in_x[:, None] + (d // C)[None, :]
                seen = seen[:, None] & (at >= 0) & (at < width) & (d < WIDE)[None, :]
        read = x + (((image * height + in_y) * width + in_x) * C)[:, None] + d[None, :]
        taken = weight + (out * (TAPS * TAPS * C) + tap * WIDE)[None, :] + d[:, None]
        a = tl.load(read, mask=seen, other=0.0)
        if WIDE % DEPTH == 0 and OUT % COLUMNS == 0:
            b = tl.load(taken)
        else:
            b = tl.load(taken, mask=(d < WIDE)[:, None] & (out < OUT)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    place = row[:, None] * OUT + out[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=inside[:, None] & (out < OUT)[None, :])
    if SUMS:
        part += (member * tl.num_programs(0) + tl.program_id(0)) * (2 * OUT) + out
        tl.store(part, tl.sum(total, 0), mask=out < OUT)
        tl.store(part + OUT, tl.sum(total * total, 0), mask=out < OUT)


def _weight_gradient(  # type: ignore[no-untyped-def]
    dy, x, part, rows, height, width, out_height, out_width, stride, padding, each, blocks, batch,
    C: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    x += member * batch * height * width * C
    dy += member * rows * OUT
    WIDE: tl.constexpr = TAPS * C
    BLOCKS: tl.constexpr = (WIDE + DEPTH - 1) // DEPTH
    block = tl.program_id(1)
    tap = tl.program_id(0) % TAPS
    cell = tl.program_id(0) // TAPS
    d = (cell % BLOCKS) * DEPTH + tl.arange(0, DEPTH)
    out = (cell // BLOCKS) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((DEPTH, COLUMNS), dtype=tl.float32)
    for step in range(0, each, ROWS):
        row = block * each + step + tl.arange(0, ROWS)
        inside = row < rows
        image = row // (out_width * out_height)
        in_y = ((row // out_width) % out_height) * stride - padding + tap
        in_x = (row % out_width) * stride - padding
        seen = inside & (in_y >= 0) & (in_y < height)
        if C % DEPTH == 0:
            at = in_x + (cell % BLOCKS) * DEPTH // C
            seen = (seen & (at >= 0) & (at < width))[:, None]
        else:
            at = in_x[:, None] + (d // C)[None, :]
            seen = seen[:, None] & (at >= 0) & (at < width) & (d < WIDE)[None, :]
        read = x + (((image * height + in_y) * width + in_x) * C)[:, None] + d[None, :]
        a = tl.load(read, mask=seen, other=0.0)
        b = tl.load(dy + row[:, None] * OUT + out[None, :], mask=inside[:, None] & (out < OUT)[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision="ieee")
    place = (((member * blocks + block) * OUT + out[None, :]) * TAPS + tap) * WIDE + d[:, None]
    tl.store(part + place, total, mask=(d < WIDE)[:, None] & (out < OUT)[None, :])


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
