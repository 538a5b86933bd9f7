"""Reductions, and operators that normalise along one dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import combine, elementwise
from lcprune.graph.rules.table import Call, Outcome, no_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass

# Their last output says where the others were found.
_PLACES = ("aten::argmax", "aten::argmin", "aten::max", "aten::median", "aten::min", "aten::mode")
# Position of the `dim` argument, where it is not 1.
_DIM = {"aten::linalg_vector_norm": 2, "aten::norm": 2}


@rule(
    *("all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "linalg_vector_norm", "logsumexp", "max"),
    *(
        "mean",
        "median",
        "min",
        "mode",
        "norm",
        "prod",
        "std",
        "std_mean",
        "sum",
        "var",
        "var_mean",
        "count_nonzero",
    ),
    mixes=True,
)
def reduce(run: LabelPass, call: Call, out: Any) -> Outcome:
    """A reduced axis loses its labels; a grid that is reduced along one side is tied along it."""
    if len(call.tensors) > 1:  # max(a, b) of two tensors is element-wise
        return elementwise(run, call, out)
    first = out if isinstance(out, Tensor) else next(iter(out))
    dims = _dims(call)
    keep = first.ndim == call.input.ndim
    layers = []
    for layer in call.labels[0].layers:
        here = [dim for dim in dims if layer.shape[dim] > 1]
        if here and varying(layer) <= set(dims):
            run.mix(layer, here)
            continue
        if here:
            layer = run.tie(layer, here)
        layers.append(layer if keep else layer.reshape([n for d, n in enumerate(layer.shape) if d not in dims]))
    labels = Labels(tuple(layers), weight=call.labels[0].weight)
    if call.name not in _PLACES:
        return labels
    reduced = [layer for layer in call.labels[0].layers if varying(layer) & dims]
    places = replace(labels, places=tuple(reduced))
    return places if isinstance(out, Tensor) and "arg" in call.name else [labels, places]


def _dims(call: Call) -> set[int]:
    dims = call.arg(_DIM.get(call.name, 1), "dim")
    if isinstance(dims, bool):  # overloads without a dimension, such as std(unbiased)
        dims = None
    if dims is None or dims == []:
        return set(range(call.input.ndim))
    return {dim % max(call.input.ndim, 1) for dim in ([dims] if isinstance(dims, int) else dims)}


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", mixes=True, fixed=no_arguments)
def softmax(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Channels along the dimension share one sum."""
    dim = call.args[1] % call.input.ndim
    for layer in call.labels[0].layers:
        if layer.shape[dim] > 1:
            run.mix(layer, [dim])
    return call.labels[0]


@rule("_weight_norm_interface", "_weight_norm", mixes=True)
def weight_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """v * g / |v|: g rides along `dim`, the other dimensions share a norm."""
    vector, scale = call.tensors[:2]
    for layer in call.labels[0].layers:
        if layer.shape[call.arg(2, "dim", 0) % vector.ndim] == 1:
            run.mix(layer, sorted(varying(layer)))
    labels = combine(run, [vector.shape, scale.shape], list(call.labels[:2]), vector.ndim)
    return [labels, call.labels[1]] if not isinstance(out, Tensor) else labels
