"""Operators that run along some dimensions, usually of space: sorting, running sums, Fourier transforms, scattering.

Along the other dimensions every channel is treated by itself. Channels that lie along the dimension itself stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import check_destination, combine
from lcprune.graph.rules.table import Call, Outcome, plain_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule(
    *("cummax", "cummin", "cumprod", "cumsum", "_fft_c2c", "_fft_c2r", "_fft_r2c", "kthvalue", "logcumsumexp"),
    *("sort", "topk"),
    uneven=True,
    fixed=plain_arguments,
)
def along(run: LabelPass, call: Call, out: Any) -> Outcome:
    """What comes out, and where it was found, belongs to the channel that it came from."""
    first = out if isinstance(out, Tensor) else next(iter(out))
    dims = call.arg(2 if call.name in ("aten::kthvalue", "aten::topk") else 1, "dim", -1)
    dims = {dim % max(call.input.ndim, 1) for dim in ([dims] if isinstance(dims, int) else dims)}
    layers = _others(run, call, call.labels[0], dims)
    if first.ndim < call.input.ndim:  # kthvalue drops the dimension
        layers = [layer.squeeze(*dims) for layer in layers]
    return Labels(tuple(layers), weight=call.labels[0].weight)


@rule("gather", "scatter", "scatter_add", "scatter_reduce", uneven=True, fixed=plain_arguments)
def by_place(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Places along one dimension are read or written; along the others the elements meet."""
    if call.inplace:
        check_destination(run, call)
    return _meet(run, call, {call.arg(1, "dim") % max(call.input.ndim, 1)})


@rule("max_unpool2d", "max_unpool3d", fixed=plain_arguments)
def unpool(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Values go to places in their own channel's space."""
    count = 2 if call.name.endswith("2d") else 3
    return _meet(run, call, range(out.ndim - count, out.ndim))


def _meet(run: LabelPass, call: Call, dims: Collection[int]) -> Labels:
    """The tensors of an operator meet along all dimensions but `dims`."""
    labels = [replace(label, layers=tuple(_others(run, call, label, dims)), taken=()) for label in call.labels]
    for label in labels:
        for layer in label.layers:
            if any(len({tensor.shape[dim] for tensor in call.tensors}) > 1 for dim in varying(layer)):
                run.freeze(layer, f"is taken by position ({call.name.removeprefix('aten::')})")
    shapes = [[1 if dim in dims else n for dim, n in enumerate(tensor.shape)] for tensor in call.tensors]
    return combine(run, shapes, labels, call.input.ndim)


def _others(run: LabelPass, call: Call, labels: Labels, dims: Collection[int]) -> list[Tensor]:
    """The layers that do not vary along `dims`; the others must stay."""
    layers = []
    for layer in labels.layers:
        if varying(layer) & set(dims):
            run.freeze(layer, f"{call.name.removeprefix('aten::')} runs along its channels")
        else:
            layers.append(layer)
    return layers
