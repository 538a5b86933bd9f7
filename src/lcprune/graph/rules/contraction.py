"""Convolutions and matrix products: columns follow what is delivered to them, rows deliver what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, freeze, rule, unknown

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass

_FIXED = "reads an axis of fixed size, such as the network's input"
_NORM = (
    "is part of a number that the whole weight gives (spectral norm); fold it into the weight first: "
    "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.remove_spectral_norm"
)


def _vector(run: LabelPass, layers: Sequence[Tensor], dim: int) -> Tensor | None:
    """The labels along one dimension; those of several layers meet."""
    found: Tensor | None = None
    for layer in layers:
        if layer.shape[dim] > 1:
            own = run.tie(layer, sorted(varying(layer) - {dim})).reshape(-1)
            found = own if found is None else run.meet(found, own)
    return found


@rule(
    *("convolution", "_convolution"),
    contracts=True,
    always=True,  # one channel alone has no labels, and costs all the same
    fixed=lambda call: call.args[3:8],  # stride, padding, dilation, transposed, output_padding
)
def convolution(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Input channels meet one side of the weight; the other side labels the output."""
    x, weight = call.tensors[:2]
    bias, transposed, groups = call.arg(2, "bias"), bool(call.arg(6, "transposed", False)), call.arg(8, "groups", 1)
    if (transposed and x.shape[1] != weight.shape[0]) or weight.shape[0] % groups:
        # On shapes alone nobody else says so.
        raise RuntimeError(f"a weight of shape {list(weight.shape)} does not fit an input of {list(x.shape)}")
    labels_x, labels_w = call.labels[:2]
    inner = _vector(run, labels_w.layers, 0 if transposed else 1)
    outer = _vector(run, labels_w.layers, 1 if transposed else 0)
    for own in labels_w.layers:
        if varying(own).isdisjoint((0, 1)):
            run.freeze(own, "lies along a convolution's kernel")
    delivered, passing = _channels(run, call, labels_x, out)
    depthwise = groups > 1 and x.shape[1] == groups
    layer: Tensor | None
    if depthwise:
        filters = inner if transposed else outer
        if filters is None and 0 in labels_w.constant and delivered is not None:
            # One filter spread over all channels: whichever stay, it serves them.
            run.use_groups(delivered)
            layer = delivered.repeat_interleave(out.shape[1] // groups)
            labels_w = labels_w.moved([*labels_w.layers, layer.reshape([-1] + [1] * (weight.ndim - 1))])
        else:
            layer = _depthwise(run, delivered, filters, outer, weight, groups, transposed)
    else:
        # Equal cuts in every group: units at the same offset of each group go together. A transposed weight's rows are
        # all input channels; otherwise columns are shared by all groups.
        for vector in (delivered, inner if transposed else outer) if groups > 1 else ():
            if vector is not None:
                run.tie(vector.reshape(groups, -1), [0])
        _contract(run, delivered, inner, 1 if transposed else groups, labels_w.weight, labels_x)
        layer = outer.repeat(groups) if outer is not None and transposed else outer
    counted = x if transposed else out
    positions = counted.numel() // max(counted.shape[1], 1)
    # A depthwise weight produces along its first dimension, transposed or not.
    rows, columns = (1, 0) if transposed and not depthwise else (0, 1)
    run.contraction(labels_w, weight.shape, (rows, columns), positions, passing, out.numel() // weight.shape[rows])
    riders = call.labels_of(bias) if isinstance(bias, Tensor) else Labels()
    if layer is None:
        freeze(run, [riders], "is added to channels that stay")
    else:
        along = [1, -1] + [1] * (out.ndim - 2)
        layer = layer.reshape(along)
        for rider in riders.layers:
            layer = run.meet(layer, rider.reshape(along), follower=1)
        passing.insert(0, layer)
    return Labels(tuple(passing), weight=labels_x.weight and labels_w.weight)


def _channels(run: LabelPass, call: Call, labels: Labels, out: Tensor) -> tuple[Tensor | None, list[Tensor]]:
    """The labels along dimension 1 as a vector, and the layers that pass a convolution untouched."""
    passing: list[Tensor] = []
    for layer in labels.layers:
        dims = varying(layer)
        if dims == {0}:
            passing.append(layer)  # channels folded into the batch: each is convolved by itself
        elif len(dims) == 1 and 1 not in dims and _same_length(call, out, *dims):
            # Channels laid along space (ECA): they slide past the kernel like pixels.
            if call.tensors[1].shape[min(dims)] > 1:
                run.mix(layer, list(dims))
            passing.append(layer)
        elif 1 not in dims:
            run.freeze(layer, "is taken by position and convolved" if not dims else "is convolved along space")
    return _vector(run, labels.layers, 1), passing


def _same_length(call: Call, out: Tensor, dim: int) -> bool:
    stride = call.arg(3, "stride", [1])
    return out.shape[dim] == call.tensors[0].shape[dim] and stride[min(dim - 2, len(stride) - 1)] == 1


def _contract(
    run: LabelPass, delivered: Tensor | None, inner: Tensor | None, groups: int, follows: bool, labels_x: Labels
) -> None:
    """What is delivered meets the columns; a side without labels has a fixed size."""
    if delivered is None and inner is not None:
        if not labels_x.uniform:
            run.freeze(inner, _FIXED)
    elif inner is None and delivered is not None:
        run.freeze(delivered, "is read by a layer whose columns cannot be cut")
    elif inner is not None and delivered is not None:
        run.meet(delivered.reshape(groups, -1), inner.reshape(1, -1), follower=1 if follows else None)


def _depthwise(
    run: LabelPass,
    delivered: Tensor | None,
    filters: Tensor | None,
    outer: Tensor | None,
    weight: Tensor,
    groups: int,
    transposed: bool,
) -> Tensor | None:
    """One input channel per group: a channel and its filters go together, and the number of groups shrinks."""
    if filters is None or delivered is None:
        for vector in (filters, delivered):
            if vector is not None:
                run.freeze(vector, _FIXED)
        return None if transposed else filters
    run.use_groups(delivered)
    met = run.meet(delivered.reshape(groups, 1), filters.reshape(groups, -1), follower=1)
    if not transposed:
        return filters
    if outer is not None:
        run.freeze(outer, "multiplies channels inside a transposed depthwise convolution")
    return met.reshape(groups, 1).expand(groups, weight.shape[1]).reshape(-1)


@rule("addmm", "baddbmm", "addbmm", "mm", "bmm", "dot", "mv", "vdot", contracts=True, always=True)
def matmul(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Sum over one axis of two tensors; linear layers and attention alike."""
    if call.short not in ("addmm", "baddbmm", "mm", "bmm"):
        if not call.weight:
            return unknown(run, call, out)
        # What is left of the singular vectors says nothing of what is left of the weight.
        freeze(run, call.labels, _NORM)
        return Labels(weight=True)
    (a, b), (labels_a, labels_b) = call.tensors[-2:], call.labels[-2:]
    ndim = a.ndim
    inner_a, rest_a = _sides(run, labels_a, ndim - 1)
    inner_b, rest_b = _sides(run, labels_b, ndim - 2)
    _contract_pair(run, inner_a, labels_a, inner_b, labels_b)
    if labels_a.weight or labels_b.weight:  # of two, the second: a linear layer may run on a constant
        weight, labels_w = (b, labels_b) if labels_b.weight else (a, labels_a)
        rows, columns = (ndim - 1, ndim - 2) if labels_b.weight else (ndim - 2, ndim - 1)
        positions = a.shape[ndim - 2] if labels_b.weight else b.shape[ndim - 1]
        # A weight in a batched product (einsum) has a batch of its own, or one copy per sample.
        rest = [layer for layer in (rest_a if labels_b.weight else rest_b) if ndim == 2 or varying(layer) != {0}]
        run.contraction(labels_w, weight.shape, (rows, columns), positions, rest, out.numel() // weight.shape[rows])
    layers = rest_a + rest_b if ndim == 2 else _batched(run, rest_a + rest_b)
    result = Labels(tuple(layers), weight=labels_a.weight and labels_b.weight)
    if len(call.tensors) == 2:
        return result
    return combine(run, [out.shape, call.tensors[0].shape], [result, call.labels[0]])


def _sides(run: LabelPass, labels: Labels, inner: int) -> tuple[Tensor | None, list[Tensor]]:
    """The labels along the summed axis as a vector, and the other layers."""
    rest: list[Tensor] = []
    for layer in labels.layers:
        if not varying(layer):
            run.freeze(layer, "is taken by position and multiplied")
        elif layer.shape[inner] == 1:
            rest.append(layer)
    return _vector(run, labels.layers, inner), rest


def _contract_pair(run: LabelPass, a: Tensor | None, labels_a: Labels, b: Tensor | None, labels_b: Labels) -> None:
    if a is not None and b is not None:
        run.meet(a, b, follower=None if labels_a.weight == labels_b.weight else int(labels_b.weight))
        return
    for own, labels, others in ((a, labels_a, labels_b), (b, labels_b, labels_a)):
        if own is not None and not others.uniform:
            run.freeze(own, _FIXED if labels.weight else "is multiplied with an axis of fixed size")


def _batched(run: LabelPass, layers: Sequence[Tensor]) -> list[Tensor]:
    """Layers along the batch of a batched product must be there on both sides, or be tied along it."""
    along = [layer for layer in layers if varying(layer) == {0}]
    rest = [run.tie(layer, [0]) for layer in layers if varying(layer) != {0}]
    if len(along) == 1:
        run.freeze(along[0], "is multiplied with an axis of fixed size")
        return rest
    merged = _vector(run, along, 0)
    return rest if merged is None else [*rest, merged.reshape(-1, 1, 1)]
