"""Convolution, bias, residual addition and ReLU as one step: less than half of the memory traffic.

A GPU judges small networks at the speed of its memory, and PyTorch writes and reads every activation once per
operator. Batches have fixed shapes here, so the forward pass is recorded once per shape, and each convolution
is joined with the addition and the activation behind it. Weights stay the very tensors of the network: what
is written into them takes effect.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lcprune.evaluate import kernels
from lcprune.graph.tail import Bounds, bounds, tail

aten = torch.ops.aten


class Fused:
    """A folded network, in evaluation mode, whose convolutions are run together with what follows them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.replaced = 0
        self._recorded: dict[Any, fx.GraphModule] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network on inputs of any shape; a new shape is recorded first."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = tuple(tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._recorded:
            self._recorded[key] = self._record(leaves, structure)
        return self._recorded[key](*leaves)

    def _record(self, leaves: list[Any], structure: pytree.TreeSpec) -> fx.GraphModule:
        def forward(*leaves: Any) -> Any:
            args, kwargs = pytree.tree_unflatten(leaves, structure)
            return self.model(*args, **kwargs)

        # Without in-place operators, so that an operator may move to where its result is needed.
        functional = torch.func.functionalize(forward, remove="mutations")
        with torch.inference_mode(False), torch.no_grad():
            recorded = make_fx(functional, tracing_mode="real")(*leaves)
        self.replaced += _join(recorded)
        return recorded


def joined(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bounds: Bounds,
) -> Tensor:
    """clamp(convolution(x) + bias + other, *bounds), by whatever is fastest."""
    if x.is_cuda:
        relu = bounds == (0.0, math.inf)
        usable = kernels.available() and kernels.counts(x.shape, weight.shape[0], padding)
        if usable and kernels.prefers(weight.shape[1], weight.shape[0], x.dtype, relu):
            return kernels.convolution(x, weight, bias, other, stride, padding, dilation, bounds)
        if relu and x.dtype != torch.float32:
            if other is None:
                return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
            return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, stride, padding, dilation, 1)
    out: Tensor = aten.convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], 1)
    if other is not None:
        out = out.add_(other)
    return out if bounds == (-math.inf, math.inf) else out.clamp_(*bounds)


def _join(recorded: fx.GraphModule) -> int:
    convolutions = [node for node in recorded.graph.nodes if _is_convolution(node)]
    for conv in convolutions:
        nodes, other, through = tail(conv, _added, lambda reader: bounds(reader.target, reader.args))
        with recorded.graph.inserting_before(nodes[-1]):
            arguments = (*conv.args[:3], other, *conv.args[3:6], through or (-math.inf, math.inf))
            new = recorded.graph.call_function(joined, arguments)
        new.meta = dict(nodes[-1].meta)
        nodes[-1].replace_all_uses_with(new)
        recorded.graph.erase_node(nodes[-1])
    recorded.graph.eliminate_dead_code()
    recorded.recompile()
    return len(convolutions)


def _is_convolution(node: fx.Node) -> bool:
    """Two-dimensional, not transposed, without groups: what the joined step computes."""
    if node.target is not aten.convolution.default:
        return False
    stride: Any = node.args[3]
    transposed, groups = node.args[6], node.args[8]
    return bool(len(stride) == 2 and not transposed and groups == 1)


def _added(reader: fx.Node, conv: fx.Node) -> fx.Node | None:
    if reader.target is not aten.add.Tensor or reader.kwargs:
        return None
    others = [operand for operand in reader.args if operand is not conv]
    same = len(others) == 1 and isinstance(others[0], fx.Node) and _kind(others[0]) == _kind(conv)
    return others[0] if same else None  # type: ignore[return-value]


def _kind(node: Any) -> tuple[Any, ...] | None:
    """Shape and type: with another of either, an addition broadcasts or promotes, which the joined step does not."""
    value = node.meta.get("tensor_meta")
    return None if value is None else (tuple(value.shape), value.dtype)
