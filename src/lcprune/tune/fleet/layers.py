"""A network with K sets of weights: the K batches lie one after another in the batch dimension."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from lcprune.errors import TuneError

_PLAIN = (
    nn.Sequential,
    nn.ModuleList,
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.Hardswish,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
    nn.ZeroPad2d,
)


def fleet_network(original: nn.Module, members: int, fuse: bool = True) -> nn.Module:
    """A copy of a network with a leading dimension `members` on every parameter and buffer.

    Args:
        original: the network; it is not touched.
        members: sets of weights, all equal to the original's at first.
        fuse: use the fast kernels where there are some.

    Raises:
        TuneError: if the network has layers that are not known; the message names them.
    """
    network = copy.deepcopy(original)
    unknown = []
    for name, module in list(network.named_modules()):
        made: nn.Module | None = None
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and isinstance(module.padding, tuple):
            made = FleetConv2d(module, members)
        elif type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats:
            made = FleetBatchNorm2d(module, members)
        elif type(module) is nn.Linear:
            made = FleetLinear(module, members)
        elif not isinstance(module, _PLAIN) and (
            module._parameters or module._buffers or type(module).__module__.startswith("torch.nn.modules")
        ):
            unknown.append(f"{name} ({type(module).__name__})")
        if made is not None:
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, made)
    if unknown:
        raise TuneError(f"a fleet does not know these layers: {', '.join(unknown[:5])}; tune each cut with `fit`")
    return network


class _Stacked(nn.Module):
    def __init__(self, module: nn.Module, members: int) -> None:
        super().__init__()
        self.members = members
        for name, parameter in module._parameters.items():
            new = None if parameter is None else nn.Parameter(_stack(parameter, members), parameter.requires_grad)
            self.register_parameter(name, new)
        for name, buffer in module._buffers.items():
            self.register_buffer(name, None if buffer is None else _stack(buffer, members))
        self.train(module.training)


class FleetConv2d(_Stacked):
    """As many convolutions as members, as one with groups."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, module: nn.Conv2d, members: int) -> None:
        super().__init__(module, members)
        self.stride, self.padding, self.dilation, self.groups = (
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
        )

    def forward(self, x: Tensor) -> Tensor:
        k, (n, c, h, w) = self.members, x.shape
        wide = x.reshape(k, n // k, c, h, w).transpose(0, 1).reshape(n // k, k * c, h, w)
        bias = None if self.bias is None else self.bias.reshape(-1)
        out = functional.conv2d(
            wide, self.weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, k * self.groups
        )
        out = out.reshape(n // k, k, -1, *out.shape[2:]).transpose(0, 1)
        return out.reshape(n, *out.shape[2:])


class FleetBatchNorm2d(_Stacked):
    """Batch norm of each member's images."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, module: nn.BatchNorm2d, members: int) -> None:
        super().__init__(module, members)
        self.eps = module.eps
        if module.momentum is None:
            raise TuneError("a fleet does not know batch norm with momentum=None; tune each cut with `fit`")
        self.momentum = module.momentum

    def forward(self, x: Tensor) -> Tensor:
        k, (n, c, h, w) = self.members, x.shape
        if self.training:
            self.num_batches_tracked.add_(1)
        wide = x.reshape(k, n // k, c, h, w).transpose(0, 1).reshape(n // k, k * c, h, w)
        out = functional.batch_norm(
            wide,
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.reshape(-1),
            self.bias.reshape(-1),
            self.training,
            self.momentum,
            self.eps,
        )
        return out.reshape(n // k, k, c, h, w).transpose(0, 1).reshape(n, c, h, w)


class FleetLinear(_Stacked):
    """A linear layer per member."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        parts = x.reshape(self.members, -1, x.shape[-1])
        if self.bias is None:
            return torch.bmm(parts, self.weight.mT).flatten(0, 1)
        return torch.baddbmm(self.bias.unsqueeze(1), parts, self.weight.mT).flatten(0, 1)


def _stack(tensor: Tensor, members: int) -> Tensor:
    return tensor.detach().unsqueeze(0).repeat(members, *[1] * tensor.dim())
