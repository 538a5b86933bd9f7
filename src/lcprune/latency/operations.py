"""Which operators a network runs, and how their shapes follow from kept counts.

The network runs once more on labels, and every operator that computes something is written down with the length
of each dimension of its tensors as a linear form of the kept counts. Operators of the same shape are one *layer
shape*: their time is a function of at most two widths (`a` and `b`, usually channels in and out), whichever
groups these come from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map_only

from lcprune.cost.polynomial import Axis
from lcprune.errors import LatencyError, LcpruneError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.graph.discover import Discover
from lcprune.graph.labels import Labels
from lcprune.graph.rules import Call, find_rule
from lcprune.graph.skeleton import inputs_to
from lcprune.latency.measure import batch_of

_LETTERS = "ab"
# Arguments that are a number of channels: operator -> position.
_CHANNEL_ARGUMENTS = {"aten::convolution": 8, "aten::native_group_norm": 4, "aten::native_layer_norm": 1}
_FREE = {"aten::_unsafe_view", "aten::detach", "aten::lift_fresh", "aten::empty_like", "aten::_to_copy"}


@dataclass(frozen=True)
class Length:
    """The length of a dimension: a number, or `times` a width. `share` of a joint width if there are more than two."""

    full: int
    width: int | None = None
    times: float = 1.0

    def at(self, widths: Sequence[int]) -> int:
        """The length for these widths."""
        return self.full if self.width is None else max(1, round(self.times * widths[self.width]))

    def __str__(self) -> str:
        if self.width is None:
            return str(self.full)
        return _LETTERS[self.width] if self.times == 1 else f"{self.times:g}{_LETTERS[self.width]}"


@dataclass(frozen=True, eq=False)
class Operation:
    """One layer shape at one place of the network.

    Attributes:
        name: e.g. "aten::convolution".
        func: the operator.
        arguments: its arguments, tensors replaced by their position.
        named: its named arguments, likewise.
        shapes: per tensor, the length of each dimension.
        dtypes: per tensor.
        axes: per width, its length as a linear form of kept counts.
        full: per width, its length in the uncut network.
        key: what makes its time: equal for operators of the same shape.
        orders: per tensor, its dimensions from the slowest to the fastest in memory.
        written: the shape of its (first) output in the uncut network.
        count: how many operators of the network are this one.
    """

    name: str
    func: Any
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    shapes: tuple[tuple[Length, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    axes: tuple[Axis, ...]
    full: tuple[int, ...]
    key: str
    orders: tuple[tuple[int, ...], ...] = ()
    written: tuple[int, ...] = ()
    count: int = 1

    @property
    def kind(self) -> str:
        """ "contraction", "pointwise" (batch norm of a running network included) or "other"."""
        if find_rule(self.func).contracts:
            return "contraction"
        pointwise = torch.Tag.pointwise in self.func.tags or "batch_norm" in self.name
        return "pointwise" if pointwise else "other"

    def shapes_at(self, widths: Sequence[int]) -> list[tuple[int, ...]]:
        """The shapes of its tensors for these widths."""
        return [tuple(length.at(widths) for length in shape) for shape in self.shapes]

    def arguments_at(self, widths: Sequence[int], tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments for these widths."""
        arguments, named = tree_map_only(
            (_Place, Length),
            lambda item: tensors[item.index] if isinstance(item, _Place) else item.at(widths),
            (self.arguments, dict(self.named)),
        )
        return tuple(arguments), named


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor among an operator's arguments."""

    index: int


def operations(graph: ChannelGraph, batch: int = 1) -> list[Operation]:
    """The operators that a network runs, in order, each with its shape as a function of kept counts.

    Args:
        graph: of the network.
        batch: samples at a time.

    Raises:
        LatencyError: the network does not run with this batch size.
    """
    structure = graph.structure
    if structure is None:
        raise LatencyError("this graph was not made by lcprune.trace, so its layers are not known")
    inputs = inputs_to(structure.inputs, "cpu") if _has_data(structure.inputs) else structure.inputs
    record = _Record(structure.skeleton, structure.units)
    try:
        record.forward(tuple(batch_of(value, batch) for value in inputs))
    except LcpruneError:
        raise
    except Exception as error:
        raise LatencyError(f"the network does not run with batch={batch}: {error}") from error
    return record.found


def distinct(found: Sequence[Operation]) -> list[Operation]:
    """Operators of the same shape and the same widths, counted."""
    merged: dict[tuple[str, tuple[Axis, ...]], Operation] = {}
    for one in found:
        place = (one.key, one.axes)
        merged[place] = replace(merged[place], count=merged[place].count + one.count) if place in merged else one
    return list(merged.values())


class _Record(Discover):
    """A run on labels that writes operators down."""

    def __init__(self, model: Any, units: Any) -> None:
        super().__init__(model)
        self.units = units
        self.found: list[Operation] = []
        self._axes: dict[tuple[int, int], tuple[Tensor, Axis | None]] = {}

    def after(self, call: Call, out: Any) -> None:
        schema = call.func._schema
        views = any(item.alias_info is not None and not item.alias_info.is_write for item in schema.returns)
        written = next((value for value in tree_iter(out) if isinstance(value, Tensor)), None)
        if call.tensors and written is not None and not views and schema.name.removesuffix("_") not in _FREE:
            self.found.append(self._operation(call, tuple(written.shape)))

    def _operation(self, call: Call, written: tuple[int, ...]) -> Operation:
        per_tensor = [self._lengths(tensor, labels) for tensor, labels in zip(call.tensors, call.labels, strict=True)]
        axes: list[Axis] = []
        for axis in (axis for dims in per_tensor for axis in dims if axis is not None):
            base = _scaled(axis)[0]
            if base not in axes:
                axes.append(base)
        if len(axes) > len(_LETTERS):
            axes = [_joined(axes)]
        full = tuple(self._full(axis) for axis in axes)
        shapes = tuple(
            tuple(_length(size, axis, axes, full) for size, axis in zip(tensor.shape, dims, strict=True))
            for tensor, dims in zip(call.tensors, per_tensor, strict=True)
        )
        places = {id(tensor): _Place(index) for index, tensor in enumerate(call.tensors)}
        arguments, named = tree_map_only(Tensor, lambda tensor: places[id(tensor)], (call.args, dict(call.kwargs)))
        named = {name: value for name, value in named.items() if not isinstance(value, torch.device)}
        arguments = _follow(call, list(arguments), shapes)
        orders = tuple(_order(tensor) for tensor in call.tensors)
        key = _key(call, arguments, named, shapes, orders)
        dtypes = tuple(tensor.dtype for tensor in call.tensors)
        return Operation(
            call.name, call.func, tuple(arguments), named, shapes, dtypes, tuple(axes), full, key, orders, written
        )

    def _lengths(self, tensor: Tensor, labels: Labels) -> list[Axis | None]:
        """Per dimension, its length as a form of counts; None where it does not change."""
        found: list[Axis | None] = [None] * tensor.ndim
        for layer in labels.layers:
            for dim, length in enumerate(layer.shape):
                if length > 1 and found[dim] is None and length == tensor.shape[dim]:
                    found[dim] = self._axis(layer, dim)
        return found

    def _axis(self, layer: Tensor, dim: int) -> Axis | None:
        place = (id(layer), dim)
        if place not in self._axes:
            line = layer[tuple(slice(None) if d == dim else slice(0, 1) for d in range(layer.ndim))]
            try:
                axis: Axis | None = self.units.axis(line.reshape(-1).numpy().copy())
            except AssertionError:  # a part of a group's channels: it has no length of its own
                axis = None
            self._axes[place] = (layer, axis if axis is not None and axis.parts else None)
        return self._axes[place][1]

    def _full(self, axis: Axis) -> int:
        return axis.fixed + sum(times * self.units.groups[group].size for group, times in axis.parts)


def _scaled(axis: Axis) -> tuple[Axis, int]:
    """An axis as a multiple of the smallest one: 49 pixels of each channel are the channels, 49 times."""
    common = math.gcd(axis.fixed, *(times for _, times in axis.parts))
    return Axis(axis.fixed // common, tuple((group, times // common) for group, times in axis.parts)), common


def _joined(axes: Sequence[Axis]) -> Axis:
    """All widths of an operator with many (a long concatenation) as one: they grow and shrink together."""
    times: dict[int, int] = {}
    for axis in axes:
        for group, number in axis.parts:
            times[group] = times.get(group, 0) + number
    return Axis(sum(axis.fixed for axis in axes), tuple(sorted(times.items())))


def _length(size: int, axis: Axis | None, axes: Sequence[Axis], full: Sequence[int]) -> Length:
    if axis is None:
        return Length(size)
    base, times = _scaled(axis)
    if base in axes:
        return Length(size, axes.index(base), float(times))
    return Length(size, 0, size / full[0])


def _follow(call: Call, arguments: list[Any], shapes: Sequence[Sequence[Length]]) -> list[Any]:
    """Numbers of channels among the arguments become lengths."""
    position = _CHANNEL_ARGUMENTS.get(call.name)
    if position is None or position >= len(arguments):
        return arguments
    channels = {length.full: length for length in shapes[0] if length.width is not None}
    value = arguments[position]
    if isinstance(value, int):
        arguments[position] = channels.get(value, value)
    elif isinstance(value, (list, tuple)):
        arguments[position] = [channels.get(item, item) for item in value]
    return arguments


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the slowest to the fastest in memory."""
    if tensor.is_contiguous():
        return tuple(range(tensor.ndim))
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-tensor.stride()[dim], dim)))


def _key(
    call: Call,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    shapes: Sequence[Sequence[Length]],
    orders: Sequence[Sequence[int]],
) -> str:
    """Operator, arguments and shapes with widths as letters: readable, and the same wherever it is made."""
    tensors = []
    for tensor, shape, order in zip(call.tensors, shapes, orders, strict=True):
        kind = str(tensor.dtype).removeprefix("torch.")
        layout = "" if list(order) == sorted(order) else "@" + "".join(map(str, order))
        tensors.append(f"{kind}[{','.join(map(str, shape))}]{layout}")

    def plain(item: Any) -> Any:
        if isinstance(item, _Place):
            return tensors[item.index]
        if isinstance(item, (list, tuple)):
            return [plain(part) for part in item]
        return item if item is None or isinstance(item, (bool, int, float)) else str(item)

    inside = ", ".join(json.dumps(plain(item)).replace('"', "") for item in [*arguments, *named.values()])
    sizes = {s.width: round(s.full / s.times) for shape in shapes for s in shape if s.width is not None}
    # A layer of one width is measured once, as wide as the network has it anywhere.
    full = "".join(f" {_LETTERS[width]}={sizes[width]}" for width in sorted(sizes)) if len(sizes) > 1 else ""
    return f"{call.name.removeprefix('aten::')}({inside}){full}"


def _has_data(inputs: Any) -> bool:
    return any(isinstance(value, Tensor) and value.device.type != "meta" for value in tree_iter(inputs))
