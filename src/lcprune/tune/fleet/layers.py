"""One network with the weights of many.

Additions, ReLUs, pooling and reshaping act on each image alone and stay as they are; only layers with weights, and
batch norm, must know whose image is whose. The usual sequence convolution, batch norm, (addition,) ReLU is found in the
network's graph and done at once where kernels can.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lcprune.errors import TuneError
from lcprune.graph.tail import Bounds, tail
from lcprune.tune.fleet import functions
from lcprune.tune.fleet.modules import FleetBatchNorm2d, FleetConv2d, FleetLinear, conv_norm


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


# The input, what is added, the layers, and the top of the ReLU, 0 for none: done at once when the last node comes.
_Join = tuple[fx.Node, fx.Node | None, FleetConv2d, FleetBatchNorm2d, float]


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
            joined[nodes[-1]] = (before.args[0], other, conv, norm, bounds[1] if bounds else 0.0)
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
