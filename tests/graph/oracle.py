"""What a pruned network should compute, found by brute force and without the library's own propagation.

Which inputs of a layer carry a removed channel is found by *staining*: the network runs with every
convolution's and linear layer's output held at its clean value, except that removed channels are NaN, which
no activation, pool or product with zero can hide; whatever is NaN at a layer's input came from a removed
channel by moving, adding, gating or normalising alone. The reference is then the original network with the
stained inputs of every layer set to zero. Only two things are taken from the trace: which rows of which weight
a unit owns, and the marks in `mixing`, where removal and silencing differ by design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

Kept = Mapping[str, Sequence[int]]
WeightKey = tuple[int, tuple[int, ...], tuple[int, ...]]

_CONVOLUTIONS = {
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
}
_COUNTED = {"convolution", "mm", "addmm"}
_LAYERS = _CONVOLUTIONS | {torch.nn.functional.linear}


class _Layers(TorchFunctionMode):
    """Calls `visit(index, weight, input, compute)` for every convolution and linear call of a pass."""

    def __init__(self, visit: Callable[[int, Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> None:
        super().__init__()
        self.visit = visit
        self.index = -1
        self.seen: set[WeightKey] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _LAYERS:
            return func(*args, **kwargs)
        names = ["input", "weight", "bias"]
        if func in _CONVOLUTIONS:
            rest = ["stride", "padding", "dilation", "groups"]
            if "transpose" in func.__name__:
                rest = ["stride", "padding", "output_padding", "groups", "dilation"]
            names += rest
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        x, weight = bound.pop("input"), bound.pop("weight")

        def compute(value: Tensor) -> Tensor:
            return func(value, weight, **bound)

        self.seen.add(_key(weight))
        transparent = func in _CONVOLUTIONS and bound.get("groups", 1) == x.shape[1] and x.shape[1] > 1
        if transparent:  # depthwise: each output channel is its input channel, moved through space
            return compute(x)
        self.index += 1
        return self.visit(self.index, weight, x, compute)


def _key(weight: Tensor) -> WeightKey:
    # A transposed view of a tied weight has the same address, but it is not the same use.
    return weight.data_ptr(), tuple(weight.shape), tuple(weight.stride())


def _channel_dim(weight: Tensor) -> int:
    return -1 if weight.ndim == 2 else 1


def silenced_outputs(model: nn.Module, inputs: tuple[Tensor, ...], graph: Any, kept: Kept) -> list[Tensor] | None:
    """Outputs of `model` with the removed units silenced wherever a layer reads them.

    Args:
        model: the network that was traced.
        inputs: its inputs.
        graph: its channel graph; only the "out" members of the groups are read.
        kept: group name -> kept units; missing groups are whole.

    Returns:
        None where a removed row belongs to a weight from which `forward` computes another one first.
    """
    removed = removed_rows(model, graph, kept)
    clean: list[Tensor] = []
    stained: list[Tensor] = []

    def record(index: int, weight: Tensor, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        stained.append(torch.zeros(x.shape[_channel_dim(weight)], dtype=torch.bool))
        clean.append(compute(x))
        return clean[-1]

    with torch.no_grad(), _Layers(record) as layers:
        model(*inputs)
    if not layers.seen.issuperset(key for key, rows in removed.items() if rows.any()):
        return None

    def stain(index: int, weight: Tensor, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        dim = _channel_dim(weight)
        stained[index] |= x.isnan().movedim(dim, 0).flatten(1).any(1)
        out = clean[index]
        rows = removed.get(_key(weight))
        if rows is None:
            return out
        rows = rows.repeat(out.shape[dim] // rows.numel())  # grouped transposed convolutions
        shape = [1] * out.ndim
        shape[dim] = out.shape[dim]
        return out.masked_fill(rows.view(shape), float("nan"))

    with torch.no_grad(), _Layers(stain):
        model(*inputs)

    def silence(index: int, weight: Tensor, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        shape = [1] * x.ndim
        shape[_channel_dim(weight)] = -1
        return compute(x.masked_fill(stained[index].view(shape), 0.0))

    with torch.no_grad(), _Layers(silence):
        return tree_leaves(model(*inputs))


def removed_rows(model: nn.Module, graph: Any, kept: Kept) -> dict[WeightKey, Tensor]:
    """A weight -> boolean mask over its output channels that are removed."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    masks: dict[WeightKey, Tensor] = {}
    for group in graph.groups:
        gone = np.setdiff1d(np.arange(group.size), np.asarray(kept.get(group.name, range(group.size))))
        for member in group.members:
            if member.role != "out":
                continue
            weight = tensors[member.weight]
            count = weight.shape[member.dim]
            mask = masks.get(_key(weight))
            rows = torch.zeros(count, dtype=torch.bool)
            rows[torch.as_tensor(member.index[gone].reshape(-1))] = True
            masks[_key(weight)] = rows if mask is None else mask | rows
    return masks


def counted_macs(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Convolution and linear multiply-adds of one sample, by the counter of torch."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for op, flops in counts.items() if str(op).split(".")[-1] in _COUNTED) / 2 / len(inputs[0])


def counted_activations(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Elements that convolution and linear calls write for one sample."""

    class Outputs(TorchFunctionMode):
        total = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func in _LAYERS:
                self.total += out.numel()
            return out

    with torch.no_grad(), Outputs() as outputs:
        model(*inputs)
    return outputs.total / len(inputs[0])


def counted_params(model: nn.Module) -> int:
    """Number of parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def worst_difference(left: Any, right: Any) -> float:
    """Largest difference between two nested outputs, relative to the size of the right one."""
    lefts, rights = tree_leaves(left), tree_leaves(right)
    assert len(lefts) == len(rights)
    worst = 0.0
    for a, b in zip(lefts, rights, strict=True):
        assert a.shape == b.shape, f"{tuple(a.shape)} instead of {tuple(b.shape)}"
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1.0)).item())
    return worst
