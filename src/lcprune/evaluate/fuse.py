"""Convolution, bias, residual addition and ReLU as one kernel: less than half of the memory traffic.

A GPU judges small networks at the speed of its memory, and PyTorch writes and reads every activation once per
operator. cuDNN has the whole sequence as one call, but nothing in eager mode uses it. Batches have fixed
shapes here, so the forward pass is recorded once per shape and its patterns are replaced. Weights stay the
very tensors of the network: what is written into them takes effect.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Fused:
    """A network whose convolutions are run together with what follows them.

    Args:
        model: a folded copy in evaluation mode; its parameters are shared, not copied.
    """

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
        self.replaced += _replace(recorded)
        return recorded


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    """relu(convolution(x) + bias); `shape` is stride, padding, dilation and groups."""
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, *shape)
    return _convolution(x, weight, bias, *shape).relu_()


def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor, *shape: Any) -> Tensor:
    """relu(convolution(x) + bias + other)."""
    if x.is_cuda:
        return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *shape)
    return _convolution(x, weight, bias, *shape).add_(other).relu_()


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    stride, padding, dilation, groups = shape
    out: Tensor = aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return out


def _replace(recorded: fx.GraphModule) -> int:
    replaced = 0
    order = {node: index for index, node in enumerate(recorded.graph.nodes)}
    for node in list(recorded.graph.nodes):
        if node.target is not aten.relu.default:
            continue
        source = node.args[0]
        with recorded.graph.inserting_before(node):
            if _is_convolution(source):
                new = recorded.graph.call_function(conv_relu, (*source.args[:3], *_shape(source)))
            elif _is_addition(source):
                one, two = sorted(source.args, key=lambda operand: -order[operand])
                conv, other = (one, two) if _is_convolution(one) else (two, one)
                if not _is_convolution(conv) or _size(conv) != _size(other):
                    continue
                new = recorded.graph.call_function(conv_add_relu, (*conv.args[:3], other, *_shape(conv)))
            else:
                continue
        new.meta = dict(node.meta)
        order[new] = order[node]
        node.replace_all_uses_with(new)
        recorded.graph.erase_node(node)
        replaced += 1
    recorded.graph.eliminate_dead_code()
    recorded.recompile()
    return replaced


def _is_convolution(node: Any) -> bool:
    # Read by nothing else, not transposed, two-dimensional: what the fused call computes.
    return (
        isinstance(node, fx.Node)
        and node.target is aten.convolution.default
        and len(node.users) == 1
        and not node.args[6]
        and len(_as_list(node.args[3])) == 2
    )


def _is_addition(node: Any) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.target in (aten.add.Tensor, operator.add)
        and len(node.users) == 1
        and not node.kwargs
        and all(isinstance(operand, fx.Node) for operand in node.args)
        and node.args[0] is not node.args[1]
    )


def _shape(conv: fx.Node) -> tuple[Any, ...]:
    return conv.args[3], conv.args[4], conv.args[5], conv.args[8]


def _size(node: Any) -> Sequence[int] | None:
    value = node.meta.get("tensor_meta")
    return None if value is None else tuple(value.shape)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
