"""Operators that only move data: they are run on the labels themselves, so the labels cannot be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from lcprune.graph.labels import Labels, Taken, pad_rank, reshape_layer, squeeze_constant, squeeze_strides, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, plain_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule(
    *("alias", "clone", "contiguous", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy", "to"),
    *("dropout", "native_dropout", "resolve_conj", "resolve_neg", "positive", "_conj", "_neg_view"),
)
def identity(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Nothing moves."""
    return call.labels[0]


# View operators that take some positions of an axis, and where their `dim` stands.
_TAKING = {
    **dict.fromkeys(("narrow", "select", "slice", "unbind"), 1),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "tensor_split"), 2),
    **dict.fromkeys(("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"), 2),
}


def takes(name: str) -> bool:
    """Whether the operator takes some positions of an axis."""
    return name.removeprefix("aten::") in _TAKING


@rule(
    *("diagonal", "movedim", "narrow", "permute", "select", "slice", "squeeze", "t", "transpose"),
    *("unfold", "unsqueeze", "unbind", "split", "split_with_sizes", "chunk", "tensor_split"),
    *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
)
def view_op(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Run on a label tensor spread out with stride 0: no copy is made, and constant dimensions are seen at once."""
    count = len([tensor for tensor in tree_iter(out) if isinstance(tensor, Tensor)])
    layers: list[list[Tensor]] = [[] for _ in range(count)]
    shape = call.input.shape
    if call.name in ("aten::t_", "aten::transpose_"):  # already done to the input; done twice, it is undone
        shape = call.func(torch.empty(shape, device="meta"), *call.args[1:]).shape
    for layer in call.labels[0].layers:
        spread = layer.expand(shape)
        moved = call.func(spread, *call.args[1:], **call.kwargs)
        parts = [moved] if isinstance(moved, Tensor) else list(moved)
        for own, part in zip(layers, parts, strict=True):
            own.append(squeeze_strides(part))
        _report_parts(run, call, layer, parts)
    taken = _taken(run, call, layers)
    return [replace(call.labels[0].moved(own), taken=some) for own, some in zip(layers, taken, strict=True)]


def _taken(run: LabelPass, call: Call, layers: list[list[Tensor]]) -> list[tuple[Taken, ...]]:
    """For every output, what it takes by position out of the labelled axes."""
    position = _TAKING.get(call.name.removeprefix("aten::"))
    if position is None:
        return [()] * len(layers)
    dim = call.arg(position, "dim", 0) % call.input.ndim
    wholes = call.labels[0].layers
    along = [place for place, whole in enumerate(wholes) if whole.shape[dim] > 1]
    if not along:
        return [()] * len(layers)
    site = run.site()
    return [tuple(Taken(site, wholes[place], own[place]) for place in along) for own in layers]


@rule("expand", always=True)
def expand(run: LabelPass, call: Call, out: Any) -> Outcome:
    """As a view, remembering where one slice was spread."""
    spread = [layer.expand(call.input.shape) for layer in call.labels[0].layers]
    layers = [squeeze_strides(call.func(layer, *call.args[1:])) for layer in spread]
    return replace(call.labels[0].moved(layers), constant=_copied(call, out))


def _copied(call: Call, out: Any) -> frozenset[int]:
    """The dimensions along which the output repeats a single slice of the input."""
    shape = (1,) * (out.ndim - call.input.ndim) + tuple(call.input.shape)
    return frozenset(dim for dim, length in enumerate(shape) if length == 1 and out.shape[dim] > 1)


def _report_parts(run: LabelPass, call: Call, layer: Tensor, parts: list[Tensor]) -> None:
    """Equal parts of a labelled axis: units at the same offset go together, unless a trial says otherwise."""
    name = call.name.removeprefix("aten::")
    if _TAKING.get(name) == 2 and len(parts) > 1:
        dim = call.arg(2, "dim", 0) % call.input.ndim
        if layer.shape[dim] > 1 and len({part.shape[dim] for part in parts}) == 1:
            run.split(torch.stack([squeeze_strides(part) for part in parts]), sides=1)
    elif name == "slice":
        dim = call.arg(1, "dim", 0) % call.input.ndim
        start = call.arg(2, "start") or 0
        if layer.shape[dim] > 1:
            start = start + layer.shape[dim] if start < 0 else start
            run.slice(layer, dim, start, squeeze_strides(parts[0]))


@rule("as_strided", "as_strided_copy", "resize", "set")
def as_strided(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Only another memory layout of the same shape can be followed."""
    if tuple(out.shape) == tuple(call.input.shape) and call.input.numel() == out.numel() and call.inplace:
        return call.labels[0]
    for layer in call.labels[0].layers:
        run.freeze(layer, f"operator {call.name} is not described")
    return Labels(weight=call.weight)


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy")
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
    if call.name == "aten::view_as_real":
        return call.labels[0].moved([layer.unsqueeze(-1) for layer in call.labels[0].layers])
    layers = []
    for layer in call.labels[0].layers:
        if layer.shape[-1] > 1:
            run.freeze(layer, "is a real or an imaginary part")
            layer = layer.narrow(-1, 0, 1)
        if varying(layer):
            layers.append(layer.squeeze(-1))
    return call.labels[0].moved(layers)


@rule("flip")
def flip(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Reversed along some dimensions."""
    return call.labels[0].moved([layer.flip(call.args[1]) for layer in call.labels[0].layers])


@rule("roll")
def roll(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Shifted along some dimensions; without dimensions, along the flattened tensor."""
    dims = call.arg(2, "dims", [])
    layers = []
    for layer in call.labels[0].layers:
        if not dims:
            layer = squeeze_constant(layer.expand(call.input.shape).roll(call.args[1]))
        else:
            layer = layer.roll(call.args[1], dims)
        if not dims or any(layer.shape[dim] > 1 for dim in dims):
            run.reorder()
            if layer.unique().numel() < layer.numel():
                run.freeze(layer, "is repeated and then rolled, so that the copies cannot be told apart")
        layers.append(layer)
    return call.labels[0].moved(layers)


@rule("repeat", "tile", always=True)
def repeat(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Copies side by side; where the labels are constant they stay so."""
    layers = []
    for layer in call.labels[0].layers:
        layer = pad_rank(layer, out.ndim)
        times = [count if length > 1 else 1 for count, length in zip(call.args[1], layer.shape, strict=True)]
        layers.append(layer.repeat(times))
    return replace(call.labels[0].moved(layers), constant=_copied(call, out))


@rule(
    *("pixel_shuffle", "pixel_unshuffle", "native_channel_shuffle", "channel_shuffle", "im2col"),
    *("repeat_interleave", "rot90"),
)
def rearrange(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Anything else that copies elements to other places: run in full on one sample's labels."""
    layers = []
    for layer in call.labels[0].layers:
        keep_batch = layer.shape[0] > 1 or layer.ndim <= 2
        shape = list(call.input.shape)
        if not keep_batch:
            shape[0] = 1
        spread = layer.expand(shape)
        _report_shuffle(run, call, layer)
        # Labels are integers, and im2col pads with 0: shift them so that padding is not mistaken for an atom.
        moved = call.func((spread + 1).double() if call.name == "aten::im2col" else spread, *call.args[1:])
        if call.name == "aten::im2col":
            moved = _centre_of_patches(moved, call)
        layers.append(squeeze_constant(moved))
    return call.labels[0].moved(layers)


def _report_shuffle(run: LabelPass, call: Call, layer: Tensor) -> None:
    """Shuffles lay the channels out as a grid."""
    dim = call.input.ndim - 3 if "pixel" in call.name else 1
    if layer.shape[dim] == 1 or "shuffle" not in call.name or "unshuffle" in call.name:
        return
    rows = call.args[1] if "channel" in call.name else layer.shape[dim] // call.args[1] ** 2
    run.split(layer.movedim(dim, 0).reshape(rows, layer.shape[dim] // rows, -1), sides=2)


def _centre_of_patches(moved: Tensor, call: Call) -> Tensor:
    """Per patch position, the atom that is there somewhere in space (padding aside)."""
    return moved.amax(dim=-1, keepdim=True).long() - 1


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
    layers = []
    for layer in call.labels[0].layers:
        if varying(layer) & {layer.ndim - 2, layer.ndim - 1}:
            run.freeze(layer, f"is set to zero by position ({call.name.removeprefix('aten::')})")
        layers.append(layer)
    return Labels(tuple(layers), weight=call.labels[0].weight)


@rule("cat", "concat", "concatenate", uneven=True)
def cat(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Layers along the dimension are strung together; the others meet."""
    tensors = [tensor for tensor in call.args[0] if tensor.numel() or tensor.ndim == out.ndim]
    dim = call.arg(1, "dim", 0) % out.ndim
    labels = [call.labels_of(tensor) for tensor in tensors]
    return _concatenate(run, [tensor.shape for tensor in tensors], labels, dim)


@rule("stack", uneven=True)
def stack(run: LabelPass, call: Call, out: Any) -> Outcome:
    """A new dimension, then as `cat`."""
    dim = call.arg(1, "dim", 0) % out.ndim
    labels = [call.labels_of(tensor) for tensor in call.args[0]]
    labels = [label.moved([layer.unsqueeze(dim) for layer in label.layers]) for label in labels]
    shapes = [[*tensor.shape[:dim], 1, *tensor.shape[dim:]] for tensor in call.args[0]]
    return _concatenate(run, shapes, labels, dim)


def _concatenate(run: LabelPass, shapes: Sequence[Sequence[int]], labels: list[Labels], dim: int) -> Labels:
    lengths, ndim = [shape[dim] for shape in shapes], len(shapes[0])
    along = [
        [layer for layer in label.layers if _belongs(layer, length, dim)]
        for label, length in zip(labels, lengths, strict=True)
    ]
    across = [
        label.moved([layer for layer in label.layers if not _belongs(layer, length, dim)])
        for label, length in zip(labels, lengths, strict=True)
    ]
    layers: list[Tensor] = []
    if any(along) and len(shapes) > 1:
        pieces = []
        for label, own, length in zip(labels, along, lengths, strict=True):
            if own:
                pieces.append(own[0])
                for extra in own[1:]:
                    run.freeze(extra, "is concatenated along an axis that it shares")
            else:
                atoms = run.phantom(length, "" if label.uniform else "is concatenated with an axis of fixed size")
                pieces.append(atoms.reshape([length if d == dim else 1 for d in range(ndim)]))
        shape = [max(piece.shape[d] for piece in pieces) for d in range(ndim)]
        spread = []
        for piece, length in zip(pieces, lengths, strict=True):
            target = list(shape)
            target[dim] = length
            spread.append(piece.expand(target))
        layers.append(torch.cat(spread, dim))
    elif any(along):
        layers += along[0]
    heads = [[*shape[:dim], 1, *shape[dim + 1 :]] for shape in shapes]
    rest = combine(run, heads, across, ndim)
    return Labels(tuple(layers) + rest.layers, weight=rest.weight)


def _belongs(layer: Tensor, length: int, dim: int) -> bool:
    """Whether a layer says which atoms lie along `dim`: it varies there, or it is one channel taken out."""
    return layer.shape[dim] > 1 or (length == 1 and not varying(layer))


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
        for position in range(len(pads) // 2):
            dim = layer.ndim - 1 - position
            before, after = pads[2 * position], pads[2 * position + 1]
            if layer.shape[dim] == 1 or (before == 0 and after == 0):
                continue
            if before < 0 or after < 0:
                whole = layer
                layer = layer.narrow(dim, max(0, -before), layer.shape[dim] + min(0, before) + min(0, after))
                run.take(Taken(run.site(), whole, layer), (run.site(), run.module, call.name, ()))
            pieces = [layer]
            for amount, place in ((before, 0), (after, len(pieces))):
                if amount > 0:
                    atoms = run.phantom(amount).reshape([amount if d == dim else 1 for d in range(layer.ndim)])
                    target = list(layer.shape)
                    target[dim] = amount
                    pieces.insert(place if place == 0 else len(pieces), atoms.expand(target))
            layer = torch.cat(pieces, dim)
        layers.append(layer)
    return Labels(tuple(layers), weight=call.labels[0].weight)


@rule("index_select", "embedding", "take")
def index(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Positions chosen by numbers kept elsewhere: a labelled axis that is indexed cannot be cut."""
    layers = []
    for layer in call.labels[0].layers:
        if call.name == "aten::index_select" and layer.shape[call.args[1]] == 1:
            layers.append(layer)
        elif call.name == "aten::embedding" and layer.shape[0] == 1:
            layers.append(layer.reshape([1] * (out.ndim - 1) + [-1]))
        else:
            run.freeze(layer, f"is chosen by position ({call.name.removeprefix('aten::')})")
    for label in call.labels[1:]:
        for layer in label.layers:
            run.freeze(layer, "holds positions")
    return call.labels[0].moved(layers)
