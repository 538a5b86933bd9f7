"""Operators that only move data: they are run on the labels themselves, so the labels cannot be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lcprune.graph.labels import Labels, Taken, pad_rank, reshape_layer, squeeze_constant, squeeze_strides, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, plain_arguments, rule, unknown

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy", "native_dropout", "_conj", "_neg_view")
def identity(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Nothing moves."""
    return call.labels[0]


# View operators that take some positions of an axis, and where their `dim` stands.
_TAKING = {
    **dict.fromkeys(("select", "slice", "unbind"), 1),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), 2),
}


def takes(name: str) -> bool:
    """Whether the operator takes some positions of an axis."""
    return name.removeprefix("aten::") in _TAKING


@rule(*_TAKING, "diagonal", "permute", "squeeze", "t", "transpose", "unfold", "unsqueeze")
def view_op(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Run on a label tensor spread out with stride 0: no copy is made, and constant dimensions are seen at once."""
    own, shape = call.labels[0], call.input.shape
    if call.short in ("t_", "transpose_"):  # already done to the input; done twice, it is undone
        shape = call.func(torch.empty(shape, device="meta"), *call.args[1:]).shape
    moved: list[list[Tensor]] = []  # per layer, what becomes of it in each output
    for layer in own.layers:
        parts = call.func(layer.expand(shape), *call.args[1:], **call.kwargs)
        moved.append([squeeze_strides(part) for part in ([parts] if isinstance(parts, Tensor) else parts)])
    along: list[int] = []
    if call.short in _TAKING:
        dim = call.dim(_TAKING[call.short])
        along = [place for place, whole in enumerate(own.layers) if whole.shape[dim] > 1]
        for place in along:
            _report_parts(run, call, own.layers[place], dim, moved[place])
    site = run.site() if along else ()
    return [
        replace(own.moved(layers), taken=tuple(Taken(site, own.layers[place], layers[place]) for place in along))
        for layers in zip(*moved, strict=True)
    ]


def _report_parts(run: LabelPass, call: Call, whole: Tensor, dim: int, parts: list[Tensor]) -> None:
    """Equal parts of a labelled axis: units at the same offset go together, unless a trial says otherwise."""
    if call.short == "slice":
        start = call.arg(2, "start") or 0
        run.slice(whole, dim, start + whole.shape[dim] if start < 0 else start, parts[0])
    elif "split" in call.short and len(parts) > 1 and len({part.shape[dim] for part in parts}) == 1:
        run.split(torch.stack(parts), sides=1)


@rule("expand", always=True)
def expand(run: LabelPass, call: Call, out: Any) -> Outcome:
    """As a view, remembering where one slice was spread."""
    spread = [layer.expand(call.input.shape) for layer in call.labels[0].layers]
    layers = [squeeze_strides(call.func(layer, *call.args[1:])) for layer in spread]
    return replace(call.labels[0].moved(layers), constant=_copied(call, out))


@rule("repeat", always=True)
def repeat(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Copies side by side; where the labels are constant they stay so."""
    layers = []
    for layer in call.labels[0].layers:
        layer = pad_rank(layer, out.ndim)
        times = [count if length > 1 else 1 for count, length in zip(call.args[1], layer.shape, strict=True)]
        layers.append(layer.repeat(times))
    return replace(call.labels[0].moved(layers), constant=_copied(call, out))


def _copied(call: Call, out: Any) -> frozenset[int]:
    """The dimensions along which the output repeats a single slice of the input."""
    shape = (1,) * (out.ndim - call.input.ndim) + tuple(call.input.shape)
    return frozenset(dim for dim, length in enumerate(shape) if length == 1 and out.shape[dim] > 1)


@rule("as_strided", "as_strided_copy", "resize", "set")
def as_strided(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Only another memory layout of the same shape can be followed."""
    same = call.inplace and tuple(out.shape) == tuple(call.input.shape)
    return call.labels[0] if same else unknown(run, call, out)


@rule("view", "_unsafe_view", "_reshape_alias", "view_copy")
def view(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Merged dimensions are laid out; a dimension that is split leaves a grid."""
    layers = []
    for layer in call.labels[0].layers:
        moved, blocks = reshape_layer(layer, call.input.shape, out.shape)
        if moved is None:
            run.freeze(layer, "is laid out again while there are no elements that would show how")
            continue
        for block in blocks:
            grid = [dim for dim in block if moved.shape[dim] > 1]
            if len(grid) > 1:
                rest = [dim for dim in range(moved.ndim) if dim not in grid]
                sides = [moved.shape[dim] for dim in grid]
                run.split(moved.permute(*grid, *rest).reshape([*sides, -1]), sides=len(sides))
        layers.append(moved)
    return call.labels[0].moved(layers)


@rule("view_as_complex", "view_as_real")
def complex_parts(run: LabelPass, call: Call, out: Any) -> Outcome:
    """The last dimension of a real tensor holds the real and the imaginary part."""
    if call.short == "view_as_real":
        return call.labels[0].moved([layer.unsqueeze(-1) for layer in call.labels[0].layers])
    layers = []
    for layer in call.labels[0].layers:
        if layer.shape[-1] > 1:
            run.freeze(layer, "is a real or an imaginary part")
            layer = layer.narrow(-1, 0, 1)
        if varying(layer):
            layers.append(layer.squeeze(-1))
    return call.labels[0].moved(layers)


@rule("roll")
def roll(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Shifted along some dimensions; without dimensions, along the flattened tensor."""
    dims = call.arg(2, "dims", [])
    layers = []
    for layer in call.labels[0].layers:
        if dims:
            layer = layer.roll(call.args[1], dims)
        else:
            layer = squeeze_constant(layer.expand(call.input.shape).roll(call.args[1]))
        if not dims or any(layer.shape[dim] > 1 for dim in dims):
            run.reorder()
            if layer.unique().numel() < layer.numel():
                run.freeze(layer, "is repeated and then rolled, so that the copies cannot be told apart")
        layers.append(layer)
    return call.labels[0].moved(layers)


@rule("channel_shuffle", "flip", "im2col", "pixel_shuffle", "pixel_unshuffle", "rot90")
def rearrange(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Anything else that copies elements to other places: run in full on one sample's labels."""
    layers = []
    for layer in call.labels[0].layers:
        shape = list(call.input.shape)
        if layer.shape[0] == 1 and layer.ndim > 2:
            shape[0] = 1
        spread = layer.expand(shape)
        if call.short in ("channel_shuffle", "pixel_shuffle"):
            _report_shuffle(run, call, layer)
        if call.short == "im2col":
            # Labels are integers, and im2col pads with 0: shift them so that padding is not mistaken for an atom.
            # Per patch position, the atom that is there somewhere in space.
            moved = call.func((spread + 1).double(), *call.args[1:]).amax(dim=-1, keepdim=True).long() - 1
        else:
            moved = call.func(spread, *call.args[1:])
        layers.append(squeeze_constant(moved))
    return call.labels[0].moved(layers)


def _report_shuffle(run: LabelPass, call: Call, layer: Tensor) -> None:
    """Shuffles lay the channels out as a grid."""
    dim = 1 if call.short == "channel_shuffle" else call.input.ndim - 3
    if layer.shape[dim] > 1:
        rows = call.args[1] if call.short == "channel_shuffle" else layer.shape[dim] // call.args[1] ** 2
        run.split(layer.movedim(dim, 0).reshape(rows, layer.shape[dim] // rows, -1), sides=2)


@rule("col2im", uneven=True, fixed=plain_arguments)
def fold(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Patches are summed up: a channel's places in the patch go together."""
    layers = []
    for layer in call.labels[0].layers:
        if varying(layer) != {layer.ndim - 2}:
            run.freeze(layer, "lies along the patches that are folded")
            continue
        channels = run.tie(layer.reshape(out.shape[-3], -1), [1])
        layers.append(channels.reshape([1] * (out.ndim - 3) + [-1, 1, 1]))
    return call.labels[0].moved(layers)


@rule("tril", "triu", uneven=True)
def triangle(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Half of a matrix is set to zero, by position."""
    for layer in call.labels[0].layers:
        if varying(layer) & {layer.ndim - 2, layer.ndim - 1}:
            run.freeze(layer, f"is set to zero by position ({call.short})")
    return Labels(call.labels[0].layers, weight=call.labels[0].weight)


@rule("cat", uneven=True)
def cat(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Layers along the dimension are strung together; the others meet."""
    tensors = [tensor for tensor in call.args[0] if tensor.numel() or tensor.ndim == out.ndim]
    dim = call.arg(1, "dim", 0) % out.ndim
    return _concatenate(run, [tensor.shape for tensor in tensors], list(map(call.labels_of, tensors)), dim)


@rule("stack", uneven=True)
def stack(run: LabelPass, call: Call, out: Any) -> Outcome:
    """A new dimension, then as `cat`."""
    dim = call.arg(1, "dim", 0) % out.ndim
    labels = [label.moved([layer.unsqueeze(dim) for layer in label.layers]) for label in call.labels]
    shapes = [[*tensor.shape[:dim], 1, *tensor.shape[dim:]] for tensor in call.tensors]
    return _concatenate(run, shapes, labels, dim)


def _concatenate(run: LabelPass, shapes: Sequence[Sequence[int]], labels: Sequence[Labels], dim: int) -> Labels:
    along: list[list[Tensor]] = []
    across: list[Labels] = []
    for label, shape in zip(labels, shapes, strict=True):
        along.append([layer for layer in label.layers if _belongs(layer, shape[dim], dim)])
        across.append(label.moved([layer for layer in label.layers if not _belongs(layer, shape[dim], dim)]))
    layers = along[0]
    if any(along) and len(shapes) > 1:
        for own, label, shape in zip(along, labels, shapes, strict=True):
            if not own:
                reason = "" if label.uniform else "is concatenated with an axis of fixed size"
                own.append(_phantoms(run, shape[dim], dim, len(shape), reason))
            for extra in own[1:]:
                run.freeze(extra, "is concatenated along an axis that it shares")
        layers = [_strung([own[0] for own in along], dim)]
    rest = combine(run, [[*shape[:dim], 1, *shape[dim + 1 :]] for shape in shapes], across)
    return Labels((*layers, *rest.layers), weight=rest.weight)


def _belongs(layer: Tensor, length: int, dim: int) -> bool:
    """Whether a layer says which atoms lie along `dim`: it varies there, or it is one channel taken out."""
    return layer.shape[dim] > 1 or (length == 1 and not varying(layer))


def _phantoms(run: LabelPass, length: int, dim: int, ndim: int, reason: str = "") -> Tensor:
    """Channels without a weight behind them."""
    return run.phantom(length, reason).reshape([-1 if d == dim else 1 for d in range(ndim)])


def _strung(pieces: Sequence[Tensor], dim: int) -> Tensor:
    """Layers one after another along `dim`, each spread out along the other dimensions where another one varies."""
    shape = [max(lengths) for lengths in zip(*(piece.shape for piece in pieces), strict=True)]
    shape[dim] = -1
    return torch.cat([piece.expand(shape) for piece in pieces], dim)


def _spatial_pads(call: Call) -> Any:
    """The padding of dimensions along which no channels lie."""
    pads, ndim = list(call.args[1]), call.input.ndim
    channels = {dim for layer in call.labels[0].layers for dim in varying(layer)}
    return [pads[2 * k : 2 * k + 2] for k in range(len(pads) // 2) if ndim - 1 - k not in channels]


@rule("constant_pad_nd", uneven=True, fixed=_spatial_pads)
def constant_pad(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Padding of a labelled axis: channels without a weight behind them."""
    pads = list(call.args[1])
    layers = []
    for layer in call.labels[0].layers:
        ndim = layer.ndim
        for position, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
            dim = ndim - 1 - position
            if layer.shape[dim] == 1 or before == after == 0:
                continue
            if before < 0 or after < 0:
                whole = layer
                layer = layer.narrow(dim, max(0, -before), layer.shape[dim] + min(0, before) + min(0, after))
                run.take(Taken(run.site(), whole, layer), (run.site(), run.module, call.name, ()))
            first = [_phantoms(run, before, dim, ndim)] if before > 0 else []
            last = [_phantoms(run, after, dim, ndim)] if after > 0 else []
            layer = _strung([*first, layer, *last], dim)
        layers.append(layer)
    return Labels(tuple(layers), weight=call.labels[0].weight)
