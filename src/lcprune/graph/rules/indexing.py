"""Reading and writing by index: `x[places]`, `x[mask]`, `x[places] = y`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, pad_rank, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, is_mask, is_shared, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule("index")
def index(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Elements chosen from unlabelled axes (boxes, pixels); a labelled axis that is indexed cannot be cut."""
    places = _Places(call)
    layers = []
    for layer in call.labels[0].layers:
        if any(layer.shape[dim] > 1 for dim in places.dims):
            run.freeze(layer, "is chosen by position (index)")
        else:
            layers.append(layer.reshape(places.chosen(layer.shape)))
    _freeze_indices(run, call)
    return Labels(tuple(layers), weight=call.labels[0].weight)


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
        return bool(varying(pad_rank(layer, ndim - len(self.dims) + self.rank)) & set(chosen))


def _freeze_indices(run: LabelPass, call: Call) -> None:
    for index in call.args[1]:
        for layer in call.labels_of(index).layers if isinstance(index, Tensor) else ():
            run.freeze(layer, "holds positions")


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
    apart = not any(varying(layer) & set(places.dims) for layer in own.layers)
    apart = apart and not any(places.varies(layer, target.ndim) for layer in labels.layers)
    _freeze_indices(run, call)
    if not apart or (call.inplace and labels.layers and is_shared(target)):
        for layer in (*own.layers, *labels.layers):
            run.freeze(layer, "is written by position (index_put)")
    if call.inplace and not labels.uniform:
        run.wrote(target)
    if not apart:
        return Labels(own.layers)
    moved = [layer.reshape(places.home(layer.shape, target.ndim)) for layer in labels.layers]
    merged = combine(run, [target.shape, shape], [own, labels.moved(moved)], target.ndim)
    return Labels(merged.layers, weight=merged.weight)
