"""Normalisation, softmax and reductions: elements along an axis influence one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import combine, elementwise
from lcprune.graph.rules.table import Call, Outcome, no_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass

# Their last output says where the others were found.
_PLACES = ("argmax", "argmin", "max", "median", "min", "mode")


def _mix(run: LabelPass, labels: Labels, dims: set[int]) -> None:
    """Channels along some of `dims` influence one another."""
    for layer in labels.layers:
        if here := sorted(varying(layer) & dims):
            run.mix(layer, here)


def _ride(run: LabelPass, call: Call, riders: Sequence[Any]) -> Labels:
    """Tensors with one element per channel meet the labels of the input along dimension 1."""
    along = [1, -1] + [1] * (call.input.ndim - 2)
    shapes, labels = [call.input.shape], [call.labels[0]]
    for rider in riders:
        if isinstance(rider, Tensor):
            own = call.labels_of(rider)
            shapes.append(rider.reshape(along).shape)
            labels.append(own.moved([layer.reshape(along) for layer in own.layers]))
    return replace(combine(run, shapes, labels), uniform=False)


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    mixes=True,
    fixed=lambda call: call.args[5:8],  # training, momentum, eps
)
def batch_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Scale, shift and statistics ride on dimension 1; in training mode the other dimensions are mixed."""
    uses_statistics = isinstance(call.arg(3, "running_mean"), Tensor) and call.arg(5, "training") is not True
    if not uses_statistics:
        _mix(run, call.labels[0], set(range(call.input.ndim)) - {1})
    return [_ride(run, call, call.args[1:5])]


@rule("native_group_norm", mixes=True, fixed=lambda call: call.args[7:])
def group_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Equal cuts in every group; with one channel per group the number of groups is cut instead."""
    groups = call.arg(6, "group")
    merged = _ride(run, call, [call.arg(1, "weight"), call.arg(2, "bias")])
    layers = []
    for layer in merged.layers:
        if layer.shape[1] > 1:
            layer = run.tie(layer, sorted(varying(layer) - {1}))
            if groups == layer.shape[1]:
                run.use_groups(layer)
            else:
                grid = layer.reshape(groups, -1)
                run.tie(grid, [0])
                run.mix(grid, [1])
        layers.append(layer)
    return [replace(merged, layers=tuple(layers))]


@rule(
    *("native_layer_norm", "_fused_rms_norm"),
    mixes=True,
    fixed=lambda call: [value for value in call.args[2:] if not isinstance(value, Tensor)],
)
def layer_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """The last dimensions share mean and variance; scale and shift ride on them."""
    _mix(run, call.labels[0], set(range(call.input.ndim - len(call.args[1]), call.input.ndim)))
    riders = [rider for rider in call.args[2:4] if isinstance(rider, Tensor)]
    shapes = [tensor.shape for tensor in (call.input, *riders)]
    return [replace(combine(run, shapes, [call.labels[0], *map(call.labels_of, riders)]), uniform=False)]


@rule("_weight_norm_interface", mixes=True)
def weight_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """v * g / |v|: g rides along `dim`, the other dimensions share a norm."""
    vector, scale = call.tensors[:2]
    for layer in call.labels[0].layers:
        if layer.shape[call.arg(2, "dim", 0) % vector.ndim] == 1:
            run.mix(layer, sorted(varying(layer)))
    return [combine(run, [vector.shape, scale.shape], call.labels[:2]), call.labels[1]]


@rule("_softmax", "_log_softmax", "_safe_softmax", mixes=True, fixed=no_arguments)
def softmax(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Channels along the dimension share one sum."""
    _mix(run, call.labels[0], call.dims(1))
    return call.labels[0]


@rule(
    *("all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "linalg_vector_norm", "logsumexp"),
    *("max", "mean", "median", "min", "mode", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean"),
    mixes=True,
)
def reduce(run: LabelPass, call: Call, out: Any) -> Outcome:
    """A reduced axis loses its labels; a grid that is reduced along one side is tied along it."""
    if len(call.tensors) > 1:  # max(a, b) of two tensors is element-wise
        return elementwise(run, call, out)
    first = out if isinstance(out, Tensor) else out[0]
    dims = call.dims(2 if call.short in ("linalg_vector_norm", "norm") else 1)
    reduced = [layer for layer in call.labels[0].layers if varying(layer) & dims]
    layers = []
    for layer in call.labels[0].layers:
        here = sorted(varying(layer) & dims)
        if here and varying(layer) <= dims:
            run.mix(layer, here)
            continue
        layer = run.tie(layer, here)
        keep = first.ndim == call.input.ndim
        layers.append(layer if keep else layer.reshape([n for d, n in enumerate(layer.shape) if d not in dims]))
    labels = Labels(tuple(layers), weight=call.labels[0].weight)
    if call.short not in _PLACES:
        return labels
    places = replace(labels, places=tuple(reduced))
    return places if isinstance(out, Tensor) and "arg" in call.name else [labels, places]
