"""The kernels as operators with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcprune.tune.fleet import kernels

HALF = torch.bfloat16  # what the kernels compute in


def on_gpu(x: Tensor) -> bool:
    """Whether kernels are at hand for these images, here and now."""
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == HALF
    return x.is_cuda and kernels.available() and half


class Convolution(torch.autograd.Function):
    """A convolution without bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, depthwise: bool) -> Tensor:
        x = half(x)
        ctx.save_for_backward(x, weight)
        ctx.layer = (stride, padding, depthwise)
        return convolved(x, weight, stride, padding, depthwise)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, dw = _conv_gradients(half(dy), x, weight, ctx.layer, ctx.needs_input_grad[0])
        return dx, dw, None, None, None


class ConvNorm(torch.autograd.Function):
    """A convolution, batch norm in training, an addition and a ReLU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, other: Tensor | None, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor,
        var: Tensor, stride: int, padding: int, depthwise: bool, epsilon: float, momentum: float, top: float,
    ) -> Tensor:  # fmt: skip
        x = half(x)
        other = None if other is None else half(other)
        y, part = convolved(x, weight, stride, padding, depthwise, sums=True)
        assert part is not None
        count = y.numel() // y.shape[1] // weight.shape[0]
        scaled, seen = kernels.statistics(part, count, gamma, beta, mean, var, epsilon, momentum)
        z = kernels.normalise(y, other, scaled, top)
        ctx.save_for_backward(x, weight, gamma, y, z if other is not None and top else None, scaled, seen)
        ctx.layer, ctx.top, ctx.other = (stride, padding, depthwise), top, other is not None
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gamma, y, z, scaled, seen = ctx.saved_tensors
        dy, added, dgamma, dbeta = kernels.norm_gradient(half(dz), y, z, gamma, scaled, seen, ctx.top, ctx.other)
        dx, dw = _conv_gradients(dy, x, weight, ctx.layer, ctx.needs_input_grad[0])
        return dx, added, dw, dgamma, dbeta, *[None] * 8


def convolved(
    x: Tensor, weight: Tensor, stride: int, padding: int, depthwise: bool, sums: bool = False
) -> tuple[Tensor, Tensor | None]:
    """What `kernels.convolution` or `kernels.depthwise` gives, from weights as PyTorch has them."""
    rounded = weight.to(HALF)
    if depthwise:
        return kernels.depthwise(x, rounded.squeeze(2).permute(0, 2, 3, 1).contiguous(), stride, padding, sums=sums)
    return kernels.convolution(x, rounded.permute(0, 1, 3, 4, 2).contiguous(), stride, padding, sums=sums)


def _conv_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, layer: tuple[int, int, bool], wanted: bool
) -> tuple[Tensor | None, Tensor]:
    stride, padding, depthwise = layer
    members, taps = weight.shape[0], weight.shape[-1]
    turned, dx = weight.to(HALF).flip(3, 4), None
    around, size = taps - 1 - padding, (x.shape[2], x.shape[3])
    if depthwise:
        if wanted:
            turned = turned.squeeze(2).permute(0, 2, 3, 1).contiguous()
            dx, _ = kernels.depthwise(dy, turned, 1, around, stride, size)
        dw = kernels.depthwise_gradient(dy, x, members, taps, stride, padding)
        return dx, dw.permute(0, 3, 1, 2).unsqueeze(2)
    if wanted:
        dx, _ = kernels.convolution(dy, turned.permute(0, 2, 3, 4, 1).contiguous(), 1, around, stride, size)
    dw = kernels.weight_gradient(dy, x, members, taps, stride, padding)
    return dx, dw.permute(0, 1, 4, 2, 3)


def half(x: Tensor) -> Tensor:
    """As the kernels want images."""
    return x.to(HALF).contiguous(memory_format=torch.channels_last)
