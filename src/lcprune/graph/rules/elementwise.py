"""Element-wise operators, and those that make tensors out of nothing: what meets stays or goes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, pad_rank, varying
from lcprune.graph.rules.table import Call, Outcome, no_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


# Element-wise operators that torch does not tag as such.
_UNTAGGED = (
    "copy", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "log_sigmoid_forward", "mish",
    "rrelu_with_noise", "softplus", "softshrink", "hardshrink", "threshold", "_prelu_kernel", "where", "fill",
    "masked_fill", "zero", "addcmul", "addcdiv", "lerp", "clamp", "nan_to_num", "complex", "polar",
)  # fmt: skip


@rule("lcprune::elementwise", *_UNTAGGED, fixed=no_arguments)
def elementwise(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Operands broadcast; layers along the same dimensions meet."""
    if call.inplace:
        check_destination(run, call)
    labels = combine(run, [tensor.shape for tensor in call.tensors], call.labels)
    return labels if isinstance(out, Tensor) else [labels] * len(out)


def combine(run: LabelPass, shapes: Sequence[Sequence[int]], labels: Sequence[Labels]) -> Labels:
    """The labels of an element-wise combination of tensors of these shapes."""
    ndim = max(map(len, shapes))
    merged: list[tuple[Tensor, bool]] = []  # layer, and whether it labels weights alone
    for label in labels:
        before = len(merged)
        taken: set[int] = set()
        for own in label.layers:
            layer = pad_rank(own, ndim)
            partner = _partner(layer, merged[:before], taken)
            if partner is None:
                merged.append((layer, label.weight))
                continue
            taken.add(partner)
            other, other_weight = merged[partner]
            follower = None if other_weight == label.weight else int(label.weight)
            merged[partner] = (run.meet(other, layer, follower), other_weight and label.weight)
    for layer, _ in merged:
        for shape, label in zip(shapes, labels, strict=True):
            if not label.uniform and _unlabelled(shape, label, layer, ndim):
                run.freeze(layer, "is combined with an axis of fixed size")
    return Labels(
        tuple(layer for layer, _ in merged),
        uniform=all(label.uniform for label in labels),
        weight=all(label.weight or label.uniform for label in labels),
    )


def _partner(layer: Tensor, others: list[tuple[Tensor, bool]], taken: set[int]) -> int | None:
    """The layer to meet: one that varies along the same dimensions, else one that shares a dimension."""
    mine = varying(layer)
    theirs = {place: varying(other) for place, (other, _) in enumerate(others) if place not in taken}
    same = [place for place, dims in theirs.items() if dims == mine]
    return next(iter(same or [place for place, dims in theirs.items() if dims & mine]), None)


def _unlabelled(shape: Sequence[int], label: Labels, layer: Tensor, ndim: int) -> bool:
    """Whether a tensor of this shape is full-sized, but not labelled, where the layer varies."""
    dims = varying(layer)
    shift = ndim - len(shape)
    copies = {dim + shift for dim in label.constant}  # one slice spread over the axis serves whatever stays
    full = {dim for dim in dims if dim >= shift and shape[dim - shift] > 1} - copies
    return bool(full) and not any(varying(pad_rank(own, ndim)) & dims for own in label.layers)


def check_destination(run: LabelPass, call: Call) -> None:
    """Writing labelled data in place into memory that has no labels: they cannot be followed from there."""
    target, own = call.tensors[0], call.labels[0]
    known = {dim for layer in own.layers for dim in varying(layer)}
    for labels in call.labels[1:]:
        for layer in labels.layers:
            if own.uniform or not varying(pad_rank(layer, target.ndim)) <= known:
                run.freeze(layer, "is written in place into memory that other operators share")
    if not all(labels.uniform for labels in call.labels[1:]):
        run.wrote(target)


@rule("glu", "glu_jvp", fixed=no_arguments)
def glu(run: LabelPass, call: Call, out: Any) -> Outcome:
    """The halves of an axis are multiplied with one another."""
    dim = call.dim(1, -1)
    layers = []
    for layer in call.labels[0].layers:
        if layer.shape[dim] > 1:
            first, second = layer.chunk(2, dim)
            layer = run.meet(first, second)
        layers.append(layer)
    return call.labels[0].moved(layers)


@rule(
    *("empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_empty_strided"),
    *("new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like"),
    always=True,
)
def uniform(run: LabelPass, call: Call, out: Any) -> Outcome:
    """All elements are equal, so it does not matter which of them go; `zeros_like` follows the size of its model."""
    return Labels(call.labels[0].layers if call.name.endswith("_like") else (), uniform=True)


@rule("bernoulli", "rand", "rand_like", "randn", "randn_like", "randperm")
def random(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Random values are as good for one channel as for another."""
    return Labels(uniform=True)
