"""From a table to milliseconds: a network's latency as a function of kept counts, in microseconds of work."""

from __future__ import annotations

from typing import Any

import numpy as np

from lcprune.errors import LatencyError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.fusion import fuse
from lcprune.latency.operations import Operation, distinct, operations
from lcprune.latency.table import FloatArray, Layer, Table, kinds


class Predictor:
    """A network's latency as a function of kept counts.

    It never falls when a count grows, among widths of the same kind; those that are multiples of `table.even` may be
    faster than the others below them. (Cutting at a limit needs no more: the widths it finds are always within.)

    Args:
        table: times of its layers.
        graph: of the network.
        multiple_of: widths that are not multiples of this do not occur.

    Raises:
        LatencyError: the table lacks a layer of the network; the message names it.
    """

    def __init__(self, table: Table, graph: ChannelGraph, multiple_of: int = 1) -> None:
        self.table, self.graph, self.multiple_of = table, graph, multiple_of
        found = distinct(fuse(operations(graph, table.batch), table.fusion))
        self._columns: dict[Any, int] = {}
        lows: list[int] = []
        matrix: list[tuple[int, int, int]] = []
        fixed: list[int] = []
        places, starts, strides, values = [], [], [], []
        slots: list[FloatArray] = []
        slot_start, total, offset = {}, 0, 0
        constant = 0.0
        for one in found:
            layer = _find(table, one).rising(multiple_of, table.even)
            times_of = layer.ms * one.count
            if not one.axes:
                constant += float(times_of.reshape(-1)[-1]) if times_of.size else 0.0
                continue
            times_of = times_of.reshape(len(layer.widths[0]), -1)
            columns = []
            for axis in one.axes:
                if axis not in self._columns:
                    self._columns[axis] = len(fixed)
                    fixed.append(axis.fixed)
                    matrix += [(group, self._columns[axis], times) for group, times in axis.parts]
                columns.append(self._columns[axis])
            where = []
            for width, full in enumerate(one.full):
                grid = layer.widths[width]
                key = (grid, full)
                if key not in slot_start:
                    slot_start[key] = offset
                    slots.append(_places(grid, full, table.even))
                    offset += full + 1
                where.append(slot_start[key])
            places.append((columns[0], columns[1] if len(columns) > 1 else -1))
            starts.append((where[0], where[1] if len(where) > 1 else -1))
            lows.append(total)
            strides.append(times_of.shape[1])
            values.append(times_of.reshape(-1))
            total += times_of.size
        self._matrix = np.zeros((len(graph.groups), len(fixed) + 1))
        for group, column, times in matrix:
            self._matrix[group, column] = times
        self._fixed = np.array([*fixed, 0], dtype=np.float64)
        self._constant = constant
        columns_of = np.array(places, dtype=np.int64).reshape(-1, 2)
        first = np.array(starts, dtype=np.int64).reshape(-1, 2)
        # A layer of one width has a second one that is always 0, on a grid of one point.
        self._position = np.concatenate([*slots, np.zeros(1)])
        self._first = np.where(first < 0, len(self._position) - 1, first)
        self._column = np.where(columns_of < 0, len(fixed), columns_of)
        self._low, self._stride = np.array(lows, dtype=np.int64), np.array(strides, dtype=np.int64)
        self._rows = np.array([len(v) // s for v, s in zip(values, strides, strict=True)], dtype=np.int64)
        self._values = np.concatenate([*values, np.zeros(1)])

    def layers(self, counts: Any) -> float:
        """The sum over layers alone, milliseconds."""
        lengths = np.asarray(counts, dtype=np.float64) @ self._matrix + self._fixed
        place = self._position[self._first + lengths[self._column].astype(np.int64)]
        low = np.minimum(place.astype(np.int64), np.stack([self._rows, self._stride], 1) - 1)
        share = place - low
        step_row = np.where(low[:, 0] + 1 < self._rows, self._stride, 0)
        step_column = np.where(low[:, 1] + 1 < self._stride, 1, 0)
        corner = self._low + low[:, 0] * self._stride + low[:, 1]
        row, column = share[:, 0], share[:, 1]
        upper = self._values[corner] * (1 - column) + self._values[corner + step_column] * column
        lower = self._values[corner + step_row] * (1 - column) + self._values[corner + step_row + step_column] * column
        return float((upper * (1 - row) + lower * row).sum()) + self._constant

    def __call__(self, counts: Any) -> float:
        """Milliseconds of the network that keeps so many units of each group."""
        correction = self.table.rounded.get(self.multiple_of, self.table.correction)
        return max(correction.floor, correction.offset + correction.factor * self.layers(counts), 0.0)


def _places(grid: tuple[int, ...], full: int, even: int) -> FloatArray:
    """Where each width up to `full` is on the grid: between two points of its own kind."""
    widths = np.arange(full + 1)
    parts = kinds(grid, even)
    if len(parts) == 1:
        return np.interp(widths, grid, np.arange(len(grid)))
    first, second = (np.interp(widths, part, np.arange(len(part))) for part in parts)
    return np.where(widths % even == 0, first, len(parts[0]) + second)


def _find(table: Table, one: Operation) -> Layer:
    layer = table.layers.get(one.key)
    if layer is None:
        raise LatencyError(
            f'the latency table has no layer "{one.key}", which this network runs: is it of another network, input '
            "size, precision or fusion? `lcprune latency MODEL --table FILE --blank` lists what is wanted"
        )
    if len(layer.widths) != len(one.axes):
        raise LatencyError(f'layer "{one.key}" has {len(one.axes)} widths, and {len(layer.widths)} in the table')
    for grid, full in zip(layer.widths, one.full, strict=True):
        if grid[-1] < full:
            raise LatencyError(f'layer "{one.key}" is up to {full} wide, and the table ends at {grid[-1]}')
    return layer
