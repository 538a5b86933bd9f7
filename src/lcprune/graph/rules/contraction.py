"""Convolutions and matrix products: columns follow what is delivered to them, rows deliver what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass

_FIXED = "reads an axis of fixed size, such as the network's input"


@rule(
    *("convolution", "_convolution", "convolution_overrideable", "conv1d", "conv2d", "conv3d"),
    *("cudnn_convolution", "mkldnn_convolution"),
    contracts=True,
    always=True,  # one channel alone has no labels, and costs all the same
    fixed=lambda call: call.args[3:8],  # stride, padding, dilation, transposed, output_padding
)
def convolution(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Input channels meet one side of the weight; the other side labels the output."""
    x, weight = call.tensors[:2]
    bias, transposed, groups = (
        call.arg(2, "bias"),
        bool(call.arg(6, "transposed", False)),
        call.arg(8, "groups", 1),
    )
    if (transposed and x.shape[1] != weight.shape[0]) or weight.shape[0] % groups:
        # On shapes alone nobody else says so.
        raise RuntimeError(f"a weight of shape {list(weight.shape)} does not fit an input of {list(x.shape)}")
    labels_x, labels_w = call.labels[:2]
    inner = _along(run, labels_w, 0 if transposed else 1, weight)
    outer = _along(run, labels_w, 1 if transposed else 0, weight)
    _freeze_other(run, labels_w, (0, 1), "lies along a convolution's kernel")
    delivered, passing = _channels(run, call, labels_x, out)
    per_group = x.shape[1] // groups
    if groups > 1 and per_group == 1:
        filters = inner if transposed else outer
        if filters is None and 0 in labels_w.constant and delivered is not None:
            # One filter spread over all channels: whichever stay, it serves them.
            run.use_groups(delivered)
            layer: Tensor | None = delivered.repeat_interleave(out.shape[1] // groups)
            rows = layer.reshape([-1] + [1] * (weight.ndim - 1)) if layer is not None else None
            labels_w = labels_w.moved([*labels_w.layers, *([] if rows is None else [rows])])
        else:
            layer = _depthwise(run, delivered, filters, outer, weight, groups, transposed)
    else:
        if groups > 1:
            delivered = _tie_groups(run, delivered, groups)
            # A transposed weight's rows are all input channels; otherwise columns are shared by all groups.
            if transposed:
                inner = _tie_groups(run, inner, groups)
        _contract(run, delivered, inner, groups if not transposed else 1, labels_w.weight, labels_x)
        layer = outer
        if groups > 1 and layer is not None:
            layer = layer.repeat(groups) if transposed else _tie_groups(run, layer, groups)
    counted = x if transposed else out
    positions = counted.numel() // max(counted.shape[1], 1)
    # A depthwise weight produces along its first dimension, transposed or not.
    swapped = transposed and not (groups > 1 and per_group == 1)
    written = out.numel() // max(weight.shape[1 if swapped else 0], 1)
    run.contraction(labels_w, weight.shape, (1, 0) if swapped else (0, 1), positions, passing, written)
    layers = list(passing)
    if layer is not None:
        layer = layer.reshape([1, -1] + [1] * (out.ndim - 2))
        if isinstance(bias, Tensor):
            own = call.labels_of(bias)
            for rider in own.layers:
                layer = run.meet(layer, rider.reshape([1, -1] + [1] * (out.ndim - 2)), follower=1)
        layers.insert(0, layer)
    elif isinstance(bias, Tensor):
        for rider in call.labels_of(bias).layers:
            run.freeze(rider, "is added to channels that stay")
    return Labels(tuple(layers), weight=labels_x.weight and labels_w.weight)


def _channels(run: LabelPass, call: Call, labels: Labels, out: Tensor) -> tuple[Tensor | None, list[Tensor]]:
    """The labels along dimension 1 as a vector, and the layers that pass a convolution untouched."""
    delivered: Tensor | None = None
    passing: list[Tensor] = []
    for layer in labels.layers:
        dims = varying(layer)
        if dims == {0}:
            passing.append(layer)  # channels folded into the batch: each is convolved by itself
        elif 1 in dims:
            vector = run.tie(layer, sorted(dims - {1})).reshape(-1)
            if delivered is None:
                delivered = vector
            else:
                run.meet(delivered, vector)
        elif len(dims) == 1 and _same_length(call, out, next(iter(dims))):
            # Channels laid along space (ECA): they slide past the kernel like pixels.
            dim = next(iter(dims))
            if call.tensors[1].shape[dim] > 1:
                run.mix(layer, [dim])
            passing.append(layer)
        else:
            run.freeze(layer, "is taken by position and convolved" if not dims else "is convolved along space")
    return delivered, passing


def _same_length(call: Call, out: Tensor, dim: int) -> bool:
    stride = call.arg(3, "stride", [1])
    return out.shape[dim] == call.tensors[0].shape[dim] and stride[min(dim - 2, len(stride) - 1)] == 1


def _along(run: LabelPass, labels: Labels, dim: int, weight: Tensor) -> Tensor | None:
    """The labels of a weight along one dimension, as a vector."""
    found: Tensor | None = None
    for layer in labels.layers:
        if layer.shape[dim] > 1:
            vector = run.tie(layer, sorted(varying(layer) - {dim})).reshape(-1)
            if found is None:
                found = vector
            else:
                run.freeze(vector, "shares its axis with another dimension of the weight")
                run.freeze(found, "shares its axis with another dimension of the weight")
    return found


def _freeze_other(run: LabelPass, labels: Labels, dims: tuple[int, int], reason: str) -> None:
    for layer in labels.layers:
        if not varying(layer) & set(dims):
            run.freeze(layer, reason)


def _tie_groups(run: LabelPass, vector: Tensor | None, groups: int) -> Tensor | None:
    """Equal cuts in every group: units at the same offset of each group go together."""
    if vector is not None:
        run.tie(vector.reshape(groups, -1), [0])
    return vector


def _contract(
    run: LabelPass, delivered: Tensor | None, inner: Tensor | None, groups: int, follows: bool, labels_x: Labels
) -> None:
    """What is delivered meets the columns; a side without labels has a fixed size."""
    if delivered is None and inner is not None:
        if not (labels_x.uniform):
            run.freeze(inner, _FIXED)
    elif inner is None and delivered is not None:
        run.freeze(delivered, "is read by a layer whose columns cannot be cut")
    elif inner is not None and delivered is not None:
        columns = inner.reshape(1, -1)
        run.meet(delivered.reshape(groups, -1), columns, follower=1 if follows else None)


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
    rows = filters.reshape(groups, -1)
    run.use_groups(delivered)
    met = run.meet(delivered.reshape(groups, 1), rows, follower=1)
    if not transposed:
        return filters
    if outer is not None:
        run.freeze(outer, "multiplies channels inside a transposed depthwise convolution")
    return met.reshape(groups, 1).expand(groups, weight.shape[1]).reshape(-1)


@rule("addmm", "baddbmm", "addbmm", "mm", "bmm", "matmul", "dot", "mv", "vdot", contracts=True, always=True)
def matmul(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Sum over one axis of two tensors; linear layers and attention alike."""
    name = call.name.removeprefix("aten::")
    if name not in ("addmm", "baddbmm", "mm", "bmm"):
        reason = f"operator {call.name} is not described"
        if (
            call.weight
        ):  # spectral norm: what is left of the singular vectors says nothing of what is left of the weight
            reason = (
                "is part of a number that the whole weight gives (spectral norm); fold it into the weight first: "
                "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.remove_spectral_norm"
            )
        for labels in call.labels:
            for layer in labels.layers:
                run.freeze(layer, reason)
        return Labels(weight=call.weight)
    added = call.tensors[0] if name in ("addmm", "baddbmm") else None
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
    layers = rest_a + rest_b
    merged = _batched(run, layers, a, labels_a, b, labels_b) if ndim == 3 else layers
    result = Labels(tuple(merged), weight=labels_a.weight and labels_b.weight)
    if added is None:
        return result
    return combine(run, [out.shape, added.shape], [result, call.labels[0]], ndim)


def _sides(run: LabelPass, labels: Labels, inner: int) -> tuple[Tensor | None, list[Tensor]]:
    """The labels along the summed axis as a vector, and the other layers."""
    found: Tensor | None = None
    rest: list[Tensor] = []
    for layer in labels.layers:
        dims = varying(layer)
        if inner in dims:
            vector = run.tie(layer, sorted(dims - {inner})).reshape(-1)
            if found is None:
                found = vector
            else:
                run.meet(found, vector)
        elif not dims:
            run.freeze(layer, "is taken by position and multiplied")
        else:
            rest.append(layer)
    return found, rest


def _contract_pair(run: LabelPass, a: Tensor | None, labels_a: Labels, b: Tensor | None, labels_b: Labels) -> None:
    if a is not None and b is not None:
        follower = None
        if labels_a.weight != labels_b.weight:
            follower = int(labels_b.weight)
        run.meet(a, b, follower)
    elif a is not None and not labels_b.uniform:
        run.freeze(a, _FIXED if labels_a.weight else "is multiplied with an axis of fixed size")
    elif b is not None and not labels_a.uniform:
        run.freeze(b, _FIXED if labels_b.weight else "is multiplied with an axis of fixed size")


def _batched(
    run: LabelPass, layers: list[Tensor], a: Tensor, labels_a: Labels, b: Tensor, labels_b: Labels
) -> list[Tensor]:
    """Layers along the batch of a batched product must be there on both sides, or be tied along it."""
    batch_layers = [layer for layer in layers if varying(layer) == {0}]
    result = [layer for layer in layers if 0 not in varying(layer)]
    result += [run.tie(layer, [0]) for layer in layers if 0 in varying(layer) and len(varying(layer)) > 1]
    if len(batch_layers) >= 2:
        merged = batch_layers[0]
        for layer in batch_layers[1:]:
            merged = run.meet(merged, layer)
        result.append(merged)
    elif batch_layers:
        run.freeze(batch_layers[0], "is multiplied with an axis of fixed size")
    return result
