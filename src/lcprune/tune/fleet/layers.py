"""One network with the weights of many.

Additions, ReLUs, pooling and reshaping act on each image alone and stay as they are; only layers with weights, and
batch norm, must know whose image is whose: members' batches follow one another. On a GPU in bfloat16 kernels do the
work, everywhere else PyTorch's own operators. The usual sequence convolution, batch norm, (addition,) ReLU is found in
the network's graph and done at once where kernels can.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lcprune.errors import TuneError
from lcprune.graph.tail import Bounds, tail
from lcprune.tune.fleet import functions, kernels


def fleet_network(original: nn.Module, members: int) -> nn.Module:
    """A network that is many: same names, every parameter and buffer with a leading dimension of members.

    Returns:
        A network for images (members * batch, channels, height, width), the first member's batch first. Every member
        begins with the original's weights.
    """
    network = copy.deepcopy(original)
    for name, module in original.named_modules():
        made = _made(name, module, members)
        if made is None:
            continue
        parent, _, last = name.rpartition(".")
        if not name:
            return made
        setattr(network.get_submodule(parent), last, made)
    try:
        graph = fx.Tracer().trace(original)
    except Exception:  # whatever a forward may raise when it meets a proxy: such a network runs layer by layer
        return network
    runner = _Runner(network, graph)
    if runner.joined:
        network.forward = runner.forward  # type: ignore[method-assign]
    return network


def _made(name: str, module: nn.Module, members: int) -> nn.Module | None:
    """The fleet's layer for one of the original; None for what needs none."""
    if isinstance(module, nn.Conv2d) and module.groups in (1, module.in_channels) and module.padding_mode == "zeros":
        return FleetConv2d(module, members)
    if isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats and module.momentum:
        return FleetBatchNorm2d(module, members)
    if isinstance(module, nn.Linear):
        return FleetLinear(module, members)
    own = [*module._parameters.values(), *module._buffers.values()]
    if any(tensor is not None for tensor in own) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p):
        raise TuneError(f"{name or 'the network'} is a {type(module).__name__}, which no fleet can train; use fit")
    return None


class _Join(NamedTuple):
    """What is done at once, when its last node comes."""

    x: fx.Node
    other: fx.Node | None  # what is added
    conv: FleetConv2d
    norm: FleetBatchNorm2d
    top: float  # of the ReLU; 0 for none


class _Runner(fx.Interpreter):
    """Runs the original's graph with the fleet's layers."""

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        super().__init__(network, garbage_collect_values=False, graph=graph)
        self.joined, self.absorbed = _joins(network, graph)

    def forward(self, x: Tensor) -> Any:
        """What the network does."""
        return self.run(x)

    def run_node(self, n: fx.Node) -> Any:
        # Which way depends on the device and the precision of the moment.
        fused = functions.on_gpu(next(iter(self.env.values()))) if self.env else False
        if fused and n in self.absorbed:
            return None
        if fused and n in self.joined:
            x, other, conv, norm, top = self.joined[n]
            return conv_norm(self.env[x], None if other is None else self.env[other], conv, norm, top)
        return super().run_node(n)


def _joins(network: nn.Module, graph: fx.Graph) -> tuple[dict[fx.Node, _Join], set[fx.Node]]:
    joined: dict[fx.Node, _Join] = {}
    absorbed: set[fx.Node] = set()

    def layer(node: Any) -> nn.Module | None:
        good = isinstance(node, fx.Node) and node.op == "call_module"
        return network.get_submodule(str(node.target)) if good else None

    for node in graph.nodes:
        norm = layer(node)
        if not isinstance(norm, FleetBatchNorm2d):
            continue
        before = node.args[0]
        conv = layer(before)
        if not isinstance(conv, FleetConv2d) or len(before.users) > 1 or conv.bias is not None:
            continue
        nodes, other, bounds = tail(node, _added, lambda reader: _bounds(reader, layer(reader)))
        # What is added may be another sequence, which waits for this addition.
        if other not in absorbed and nodes[-1] not in joined:
            joined[nodes[-1]] = _Join(before.args[0], other, conv, norm, bounds[1] if bounds else 0.0)
            absorbed |= {before, *nodes[:-1]}
    return joined, absorbed


def _added(reader: fx.Node, norm: fx.Node) -> fx.Node | None:
    if reader.target not in (operator.add, torch.add, "add") or len(reader.args) != 2 or reader.kwargs:
        return None
    other = reader.args[1] if reader.args[0] is norm else reader.args[0]
    return other if isinstance(other, fx.Node) and other is not norm else None


def _bounds(node: fx.Node, layer: nn.Module | None) -> Bounds | None:
    if isinstance(layer, nn.ReLU6) or node.target is functional.relu6:
        return 0.0, 6.0
    relu = isinstance(layer, nn.ReLU) or node.target in (functional.relu, torch.relu, "relu")
    return (0.0, math.inf) if relu else None


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
            if self.bias is None:
                return y
            wide = y.unflatten(0, (self.members, -1))
            return (wide + self.bias.to(y.dtype).view(self.members, 1, -1, 1, 1)).flatten(0, 1)
        # Members are groups of one convolution.
        bias = None if self.bias is None else self.bias.flatten()
        wide, weight, groups = _side_by_side(x, self.members), self.weight.flatten(0, 1), self.members * self.groups
        y = functional.conv2d(wide, weight, bias, self.stride, self.padding, self.dilation, groups)
        return _in_turn(y, self.members)

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
        wide = _side_by_side(x, self.members)
        running = (self.running_mean.view(-1), self.running_var.view(-1))
        factors = (self.weight.view(-1), self.bias.view(-1))
        y = functional.batch_norm(wide, *running, *factors, self.training, self.momentum, self.eps)
        return _in_turn(y, self.members)

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
        return functional.relu(y).clamp(max=top) if top else y  # at 0 a clamp has a gradient, which would wake channels
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


def _side_by_side(x: Tensor, members: int) -> Tensor:
    """(members * batch, channels, ...) as (batch, members * channels, ...)."""
    return x.view(members, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def _in_turn(y: Tensor, members: int) -> Tensor:
    """The inverse of `_side_by_side`."""
    return y.view(len(y), members, -1, *y.shape[2:]).transpose(0, 1).flatten(0, 1)
