"""Reading and writing by place: `x[places]`, `x[mask]`, `x[places] = y`, gather and scatter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lcprune.graph.labels import Labels, pad_rank, varying
from lcprune.graph.rules.elementwise import check_destination, combine
from lcprune.graph.rules.table import STANDS_IN, Call, Outcome, freeze, is_mask, passing, plain_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule("index")
def index(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Elements chosen from unlabelled axes (boxes, pixels); a labelled axis that is indexed cannot be cut."""
    places = _Places(call)
    layers = passing(run, call.labels[0], places.dims, "is chosen by position (index)")
    _freeze_indices(run, call)
    return Labels(tuple(layer.reshape(places.chosen(layer.shape)) for layer in layers), weight=call.labels[0].weight)


class _Places:
    """Which dimensions the indices of an operator choose from, and where the chosen elements lie."""

    def __init__(self, call: Call) -> None:
        self.dims: list[int] = []
        self.rank, dim = 0, 0
        for index in call.args[1]:
            count = index.ndim if is_mask(index) else 1
            if index is not None:
                self.dims += range(dim, dim + count)
                self.rank = max(self.rank, 1 if is_mask(index) else index.ndim)
            dim += count
        together = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.front = self.dims[0] if together else 0

    def chosen(self, shape: Sequence[int]) -> list[int]:
        """The shape of a layer after choosing: one position for whatever was chosen."""
        rest = [length for dim, length in enumerate(shape) if dim not in self.dims]
        return rest[: self.front] + [1] * self.rank + rest[self.front :]

    def home(self, written: Sequence[int], ndim: int) -> list[int]:
        """The shape of what is written, laid out as what is written to: one position for whatever was chosen."""
        given = [1] * (ndim - len(self.dims) + self.rank - len(written)) + list(written)
        rest = iter(given[: self.front] + given[self.front + self.rank :])
        return [1 if dim in self.dims else next(rest) for dim in range(ndim)]

    def varies(self, layer: Tensor, ndim: int) -> bool:
        """Whether a layer of what is written says which of the chosen elements is meant."""
        chosen = range(self.front, self.front + self.rank)
        return not varying(pad_rank(layer, ndim - len(self.dims) + self.rank)).isdisjoint(chosen)


def _freeze_indices(run: LabelPass, call: Call) -> None:
    freeze(run, [call.labels_of(index) for index in call.args[1] if isinstance(index, Tensor)], "holds positions")


@rule("index_put", "_unsafe_index_put", "_index_put_impl", uneven=True)
def index_put(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Written at positions of unlabelled axes (boxes of one size among all boxes); the other axes meet."""
    target, written = call.input, call.args[2]
    places = _Places(call)
    shape = places.home(written.shape, target.ndim)
    if any(own not in (1, length) for own, length in zip(shape, target.shape, strict=True)):
        # On shapes alone nobody else says so.
        raise RuntimeError(f"shape {list(written.shape)} cannot be written by index to shape {list(target.shape)}")
    own, labels = call.labels_of(target), call.labels_of(written)
    apart = all(varying(layer).isdisjoint(places.dims) for layer in own.layers)
    apart = apart and not any(places.varies(layer, target.ndim) for layer in labels.layers)
    _freeze_indices(run, call)
    if not apart or (call.inplace and labels.layers and _is_shared(target)):
        freeze(run, (own, labels), "is written by position (index_put)")
    if call.inplace and not labels.uniform:
        run.wrote(target)
    if not apart:
        return Labels(own.layers)
    moved = [layer.reshape(places.home(layer.shape, target.ndim)) for layer in labels.layers]
    return replace(combine(run, [target.shape, shape], [own, labels.moved(moved)]), uniform=False)


def _is_shared(tensor: Tensor) -> bool:
    """Whether other tensors lie in the same memory, or it stands for a tensor on another device."""
    uses = int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
    return hasattr(tensor, STANDS_IN) or uses > 2  # the tensor's use, and this one


@rule("index_select", "embedding", "take")
def index_select(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Positions chosen by numbers kept elsewhere: a labelled axis that is indexed cannot be cut."""
    layers = []
    for layer in call.labels[0].layers:
        if call.short == "index_select" and layer.shape[call.args[1]] == 1:
            layers.append(layer)
        elif call.short == "embedding" and layer.shape[0] == 1:
            layers.append(layer.reshape([1] * (out.ndim - 1) + [-1]))
        else:
            run.freeze(layer, f"is chosen by position ({call.short})")
    freeze(run, call.labels[1:], "holds positions")
    return call.labels[0].moved(layers)


@rule("gather", "scatter", "scatter_add", "scatter_reduce", uneven=True, fixed=plain_arguments)
def by_place(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Places along one dimension are read or written; along the others the elements meet."""
    if call.inplace:
        check_destination(run, call)
    return _meet(run, call, call.dims(1))


@rule("max_unpool2d", "max_unpool3d", fixed=plain_arguments)
def unpool(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Values go to places in their own channel's space."""
    return _meet(run, call, range(out.ndim - int(call.short[-2]), out.ndim))


def _meet(run: LabelPass, call: Call, dims: Collection[int]) -> Labels:
    """The tensors of an operator meet along all dimensions but `dims`."""
    labels = []
    for own in call.labels:
        layers = passing(run, own, dims, f"{call.short} runs along its channels")
        labels.append(replace(own, layers=tuple(layers), taken=()))
        for layer in layers:
            if any(len({tensor.shape[dim] for tensor in call.tensors}) > 1 for dim in varying(layer)):
                run.freeze(layer, f"is taken by position ({call.short})")
    shapes = [[1 if dim in dims else n for dim, n in enumerate(tensor.shape)] for tensor in call.tensors]
    return combine(run, shapes, labels)
