"""What a pruned network should compute, found by brute force and without the library's own propagation.

What carries a removed channel is found by *staining*: the removed rows of weights become NaN, which no activation,
pool or product with zero can hide, and the network runs with the result of every convolution and matrix product held
at its clean value where it is not NaN itself. What is NaN where such a product sums it up came from a removed channel
by moving, adding, gating or normalising alone. The reference is then the original network with all of this set to
zero. Only two things are taken from the trace: which rows of which weight a unit owns, and the marks in `mixing`,
where removal and silencing differ by design.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kept = Mapping[str, Sequence[int]]
Compute = Callable[[Tensor, Tensor], Tensor]
# The dimensions of two operands over which a product runs; and where the first one's channels lie, if that is known.
Sums = tuple[list[int], list[int], int | None]
Visit = Callable[[int, Tensor, Tensor, Sums, Compute], Tensor]

_CONVOLUTIONS = {
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
}
_MATMULS = {torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm}
_LINEAR = torch.nn.functional.linear
_UNPOOLS = {getattr(torch.nn.functional, f"max_unpool{axes}d"): axes for axes in (1, 2, 3)}


class _Products(TorchFunctionMode):
    """Calls `visit` for every convolution and matrix product of a pass, in order."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self.visit = visit
        self.index = -1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _UNPOOLS:
            out, axes = func(*args, **kwargs), tuple(range(-_UNPOOLS[func], 0))
            # A NaN is written to one place of its channel's space; what else lies there is that channel, too.
            return out.masked_fill(args[0].isnan().any(axes, keepdim=True), math.nan)
        if func in _CONVOLUTIONS or func is _LINEAR:
            return self._layer(func, args, kwargs)
        if func in _MATMULS:
            ranks = [operand.ndim for operand in args]
            channel = ranks[0] - 1 if ranks[1] == 2 else None  # times a matrix: a linear layer
            return self._product([ranks[0] - 1], [max(ranks[1] - 2, 0)], func, *args, channel)
        if func is torch.functional.einsum and len(args) == 3:
            return self._einsum(*args)
        if func is torch.functional.tensordot:
            left, right = kwargs["dims"]
            channel = left[0] if args[1].ndim == 2 else None
            return self._product(left, right, lambda a, b: func(a, b, dims=(left, right)), *args, channel)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _product(
        self, left: list[int], right: list[int], compute: Compute, a: Tensor, b: Tensor, channel: int | None = None
    ) -> Tensor:
        if not left:  # element by element
            return compute(a, b)
        self.index += 1
        return self.visit(self.index, a, b, (left, right, channel), compute)

    def _layer(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        names = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
        transposed = "transpose" in func.__name__
        if transposed:
            names[5:] = ["output_padding", "groups", "dilation"]
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        x, weight = bound.pop("input"), bound.pop("weight")

        def compute(a: Tensor, b: Tensor) -> Tensor:
            return func(a, b, **bound)

        if func is _LINEAR:
            return self._product([x.ndim - 1], [1], compute, x, weight, x.ndim - 1)
        groups = bound.get("groups", 1)
        if groups == x.shape[1] and groups > 1:  # depthwise: an output channel is its input channel, moved in space
            return compute(x, weight)
        kernel = range(2, weight.ndim)
        return self._product(list(range(1, x.ndim)), [0 if transposed else 1, *kernel], compute, x, weight, 1)

    def _einsum(self, equation: str, a: Tensor, b: Tensor) -> Tensor:
        sides, out = equation.replace(" ", "").replace("...", "").split("->")
        summed = []
        for letters, operand in zip(sides.split(","), (a, b), strict=True):
            # An ellipsis stands behind the letters or before them, and stays.
            shift = operand.ndim - len(letters) if equation.replace(" ", "").startswith("...") else 0
            summed.append([place + shift for place, letter in enumerate(letters) if letter not in out])
        matrix = b.ndim == 2 and len(set.intersection(*map(set, sides.split(",")))) == len(summed[0]) == 1
        channel = summed[0][0] if matrix else None
        return self._product(*summed, lambda left, right: torch.einsum(equation, left, right), a, b, channel)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
        scale = kwargs.get("scale") or 1 / math.sqrt(query.shape[-1])
        inner, last = query.ndim - 2, query.ndim - 1
        scores = self._product([last], [inner], torch.matmul, query, key.transpose(-1, -2)) * scale
        return self._product([last], [inner], torch.matmul, scores.softmax(-1), value)


def silenced_outputs(model: nn.Module, inputs: tuple[Tensor, ...], graph: Any, kept: Kept) -> list[Tensor]:
    """Outputs of `model` with the removed units silenced wherever a layer reads them.

    Args:
        model: the network that was traced.
        inputs: its inputs.
        graph: its channel graph; only the members of the groups that are no columns are read.
        kept: group name -> kept units; missing groups are whole.
    """
    clean: list[tuple[Tensor, Tensor, Tensor]] = []
    stained: list[tuple[Tensor, Tensor]] = []

    def record(index: int, a: Tensor, b: Tensor, sums: Sums, compute: Compute) -> Tensor:
        clean.append((a.clone(), b.clone(), compute(a, b).clone()))  # the network may write into them
        return clean[-1][2].clone()

    def stain(index: int, a: Tensor, b: Tensor, sums: Sums, compute: Compute) -> Tensor:
        left, right, out = clean[index]
        # NaN along all that is summed belongs to something that passes: an output row, a token, an image.
        whole = [operand.isnan().all(tuple(dims), keepdim=True) for operand, dims in zip((a, b), sums[:2], strict=True)]
        mask = a.isnan() & ~whole[0]
        if sums[2] is not None:  # a channel is silent as a whole, with what is no longer NaN or never was
            mask = mask.any(tuple(dim for dim in range(a.ndim) if dim != sums[2]), keepdim=True)
        stained.append((mask, b.isnan() & ~whole[1]))
        passing = compute(left.masked_fill(whole[0], math.nan), right.masked_fill(whole[1], math.nan))
        return torch.where(passing.isnan(), passing, out)

    def silence(index: int, a: Tensor, b: Tensor, sums: Sums, compute: Compute) -> Tensor:
        left, right = stained[index]
        return compute(a.masked_fill(left, 0.0), b.masked_fill(right, 0.0))

    found: Any = None
    for visit, network in ((record, model), (stain, _with_stains(model, graph, kept)), (silence, model)):
        with torch.no_grad(), _Products(visit):
            found = network(*copy.deepcopy(inputs))
    return tree_leaves(found)


def _with_stains(model: nn.Module, graph: Any, kept: Kept) -> nn.Module:
    """A copy in which the rows of removed units are NaN, and whatever else holds one number for each."""
    stained = copy.deepcopy(model)
    tensors = dict(stained.named_parameters(remove_duplicate=False))
    tensors.update(stained.named_buffers(remove_duplicate=False))
    for group in graph.groups:
        gone = np.setdiff1d(np.arange(group.size), np.asarray(kept.get(group.name, range(group.size))))
        for member in group.members:
            if member.role != "in" and tensors[member.weight].is_floating_point():
                rows = torch.as_tensor(member.index[gone].reshape(-1))
                tensors[member.weight].data.index_fill_(member.dim, rows, math.nan)
    return stained


class _Counter(TorchDispatchMode):
    """Multiply-adds and written elements of convolutions, and of products with what does not come from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name == "convolution":
            x, weight, transposed = args[0], args[1], args[6]
            positions = x if transposed else out
            self.macs += positions.numel() // positions.shape[1] * weight.numel()
            self.written += out.numel()
        elif name in ("mm", "addmm", "bmm", "baddbmm") and not all(operand.requires_grad for operand in args[-2:]):
            self.macs += out.numel() * args[-1].shape[-2]
            self.written += out.numel()
        return out


def _counted(model: nn.Module, inputs: tuple[Tensor, ...]) -> _Counter:
    """Run with gradients of the inputs alone, which tells what comes from them."""
    leaves = (x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
    with torch.enable_grad():
        args = [x * 1 if x.requires_grad else x for x in leaves]
        with _Counter() as counter:
            copy.deepcopy(model).requires_grad_(False)(*args)
    return counter


def counted_macs(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Multiply-adds of one sample in convolutions and in products with weights."""
    return _counted(model, inputs).macs / len(inputs[0])


def counted_activations(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Elements that these write for one sample."""
    return _counted(model, inputs).written / len(inputs[0])


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
        assert a.isfinite().all() and b.isfinite().all(), "not finite"
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1.0)).item())
    return worst
