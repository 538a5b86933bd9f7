"""Layers that hold a set of weights per member; members' batches follow one another.

On a GPU in bfloat16 the kernels do the work, everywhere else PyTorch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lcprune.tune.fleet import functions, kernels


class FleetConv2d(nn.Module):
    """A convolution with weights (members, out, in / groups, height, width)."""

    def __init__(self, layer: nn.Conv2d, members: int) -> None:
        super().__init__()
        self.members, self.groups = members, layer.groups
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.weight = _stacked(layer.weight, members)
        self.bias = None if layer.bias is None else _stacked(layer.bias, members)

    def forward(self, x: Tensor) -> Tensor:
        if self.fast(x):
            y = functions.Convolution.apply(x, self.weight, self.stride[0], int(self.padding[0]), self.groups > 1)
            return y if self.bias is None else _by_member(torch.add, y, self.bias)
        # Members side by side as groups of one convolution.
        members, batch = self.members, x.shape[0] // self.members
        wide = x.view(members, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        groups = members * self.groups
        y = functional.conv2d(wide, self.weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, groups)
        return y.view(batch, members, -1, *y.shape[2:]).transpose(0, 1).flatten(0, 1)

    def fast(self, x: Tensor) -> bool:
        """Whether the kernels can do it."""
        plain = self.groups in (1, self.weight.shape[1]) and set(self.dilation) == {1} and len(set(self.stride)) == 1
        plain = plain and not isinstance(self.padding, str) and len(set(self.padding)) == 1
        return plain and functions.on_gpu(x) and kernels.fits(x, self.weight, self.stride[0], int(self.padding[0]))


class FleetBatchNorm2d(nn.Module):
    """Batch norm over each member's batch."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layer: nn.BatchNorm2d, members: int) -> None:
        super().__init__()
        assert layer.momentum is not None
        self.members, self.eps, self.momentum = members, layer.eps, layer.momentum
        self.weight, self.bias = _stacked(layer.weight, members), _stacked(layer.bias, members)
        for name, buffer in layer.named_buffers():
            self.register_buffer(name, torch.stack([buffer.detach()] * members))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        members, batch = self.members, x.shape[0] // self.members
        wide = x.view(members, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
        y = functional.batch_norm(
            wide,
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.view(-1),
            self.bias.view(-1),
            self.training,
            self.momentum,
            self.eps,
        )
        return y.view(batch, members, *x.shape[1:]).transpose(0, 1).flatten(0, 1)

    def scaled(self) -> Tensor:
        """Scale and shift by the running statistics."""
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return torch.stack([scale, self.bias - self.running_mean * scale])


class FleetLinear(nn.Module):
    """A linear layer with weights (members, out, in)."""

    def __init__(self, layer: nn.Linear, members: int) -> None:
        super().__init__()
        self.members = members
        self.weight = _stacked(layer.weight, members)
        bias: nn.Parameter | None = layer.bias  # PyTorch's own types do not know that it may be missing
        self.bias = None if bias is None else _stacked(bias, members)

    def forward(self, x: Tensor) -> Tensor:
        batches, weight = x.view(self.members, -1, x.shape[-1]), self.weight.transpose(1, 2)
        if self.bias is not None:
            return torch.baddbmm(self.bias.unsqueeze(1), batches, weight).flatten(0, 1)
        return torch.bmm(batches, weight).flatten(0, 1)


def conv_norm(x: Tensor, other: Tensor | None, conv: FleetConv2d, norm: FleetBatchNorm2d, top: float) -> Tensor:
    """norm(conv(x)) + other, clamped as `kernels.normalise` says."""
    if not conv.fast(x):
        y = norm(conv(x))
        y = y if other is None else y + other
        return y.clamp(0, top) if top else y
    stride, padding = conv.stride[0], int(conv.padding[0])
    if not norm.training:
        y, _ = functions.convolved(functions.half(x), conv.weight, stride, padding, conv.groups > 1)
        return kernels.normalise(y, None if other is None else functions.half(other), norm.scaled(), top)
    norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var)
    settings = (stride, padding, conv.groups > 1, norm.eps, norm.momentum, top)
    return functions.ConvNorm.apply(x, other, conv.weight, norm.weight, norm.bias, *running, *settings)


def _stacked(tensor: Tensor, members: int) -> nn.Parameter:
    return nn.Parameter(torch.stack([tensor.detach()] * members), requires_grad=tensor.requires_grad)


def _by_member(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, vector: Tensor) -> Tensor:
    """Apply a function of images and a number per member and channel."""
    members = vector.shape[0]
    wide = function(x.unflatten(0, (members, -1)), vector.to(x.dtype).view(members, 1, -1, 1, 1))
    return wide.flatten(0, 1)
