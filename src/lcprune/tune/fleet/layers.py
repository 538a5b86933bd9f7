"""One network with the weights of many.

Additions, ReLUs, pooling and reshaping act on each image alone and stay as they are; only layers with weights, and
batch norm, must know whose image is whose. The usual sequence convolution, batch norm, (addition,) ReLU is found in the
network's graph and done at once where kernels can.
"""

from __future__ import annotations

import copy
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lcprune.errors import TuneError
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


@dataclass
class _Join:
    """Nodes of a graph that are done together, when the last of them comes."""

    x: fx.Node
    conv: str
    norm: str
    other: fx.Node | None = None
    top: float = 0.0  # of the ReLU; 0 for none


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
            join = self.joined[n]
            other = None if join.other is None else self.env[join.other]
            conv, norm = self.module.get_submodule(join.conv), self.module.get_submodule(join.norm)
            return conv_norm(self.env[join.x], other, conv, norm, join.top)  # type: ignore[arg-type]
        return super().run_node(n)


def _joins(network: nn.Module, graph: fx.Graph) -> tuple[dict[fx.Node, _Join], set[fx.Node]]:
    joined: dict[fx.Node, _Join] = {}
    absorbed: set[fx.Node] = set()
    order = {node: place for place, node in enumerate(graph.nodes)}

    def layer(node: Any) -> nn.Module | None:
        good = isinstance(node, fx.Node) and node.op == "call_module"
        return network.get_submodule(str(node.target)) if good else None

    for node in graph.nodes:
        if not isinstance(layer(node), FleetBatchNorm2d) or not isinstance(layer(node.args[0]), FleetConv2d):
            continue
        conv_node = node.args[0]
        conv = layer(conv_node)
        assert isinstance(conv, FleetConv2d)
        if len(conv_node.users) > 1 or conv.bias is not None:
            continue
        join = _Join(conv_node.args[0], str(conv_node.target), str(node.target))
        last, inner = node, {conv_node}
        after = _only_user(last)
        if after is not None and after.target in (operator.add, torch.add, "add") and len(after.args) == 2:
            other = after.args[1] if after.args[0] is last else after.args[0]
            # What is added must be there by then, and not be another sequence that waits for this addition.
            if isinstance(other, fx.Node) and other is not last and order[other] < order[after] and not after.kwargs:
                join.other, last, inner = other, after, inner | {last}
        after = _only_user(last)
        top = 0.0 if after is None else _top(after, layer(after))
        if after is not None and top:
            join.top, last, inner = top, after, inner | {last}
        if join.other in absorbed or last in joined:
            continue
        joined[last] = join
        absorbed |= inner
    return joined, absorbed


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _top(node: fx.Node, layer: nn.Module | None) -> float:
    """The upper bound of a ReLU; 0 for any other node."""
    if isinstance(layer, nn.ReLU6) or node.target is functional.relu6:
        return 6.0
    return math.inf if isinstance(layer, nn.ReLU) or node.target in (functional.relu, torch.relu, "relu") else 0.0
