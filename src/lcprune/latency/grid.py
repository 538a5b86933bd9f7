"""Measuring one layer shape over a grid of widths, with more points where its curve has steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lcprune.latency.backends import Backend, Probe, medians
from lcprune.latency.operations import Operation
from lcprune.latency.table import Layer, kinds

_MOST = 40  # points of one curve
_COARSE = (0.125, 0.5, 1.0)  # where the two widths of a layer are tried together
_TOLERANCE = 0.03  # of the widest layer's time: a smaller bend is not looked into
_SLOW_MS = 8.0  # layers that take longer get fewer points and rounds: there are no steps worth their price

_SLIP = 1.2  # what takes so much longer than something wider is measured again

_LARGE = 2**24  # bytes

Point = tuple[int, ...]


def measure_layer(backend: Backend, one: Operation, even: int = 1) -> Layer:
    """The time of a layer shape as a function of its widths.

    The curve along each width, the other one full, is halved where a line does not fit it. Two widths together are
    tried on a coarse grid; between, the two curves multiply, which keeps the steps of both. Multiples of `even` and
    other widths may be run by different code: they have curves and coarse grids of their own. What takes much longer
    than something wider is measured again, and the shorter time counts.

    Args:
        backend: what runs it.
        one: the layer; its full widths are the widest that are measured.
        even: multiples of this are a kind of their own.
    """
    probes: dict[Point, Probe] = {}

    def times(points: Sequence[Point], quick: bool) -> dict[Point, float]:
        least, most = (1, 3) if quick else (3, 9)
        if slow:
            least = most = 2 if widest < 4 * _SLOW_MS else 1
        settings: dict[str, Any] = {"least": least, "most": most, "seconds": backend.moment / (2 if quick else 1)}
        if large:
            every = [medians(backend, {point: backend.layer(one, point)}, **settings) for point in points]
            return {point: ms for found in every for point, ms in found.items()}
        for point in points:
            if point not in probes:
                probes[point] = backend.layer(one, point)
        return medians(backend, {point: probes[point] for point in points}, **settings)

    def twice(points: Sequence[Point]) -> dict[Point, float]:
        found = times(points, False)
        odd = _slips(found)
        for point in odd:
            probes.pop(point, None)  # it may be the probe that is slow
        again = times(odd, False) if odd else {}
        return {point: min(ms, again.get(point, ms)) for point, ms in found.items()}

    slow, widest = False, 0.0
    full = one.full
    # Not all in turns, if they would not fit into memory together.
    large = backend.hoards and 4 * sum(math.prod(shape) for shape in one.shapes_at(full)) > _LARGE
    if not full:
        return Layer((), np.array(times([()], False)[()]))
    widest = times([full], True)[full]
    slow = widest > _SLOW_MS
    grids = [_curve(width, full, times, even, slow) for width in range(len(full))]
    if len(full) == 1:
        points = [(width,) for width in grids[0]]
        found = twice(points)
        return Layer((grids[0],), np.array([found[point] for point in points]))
    coarse = [_nearby(size, _COARSE if even == 1 or not slow else (0.25, 1.0), even) for size in full]
    grids = [tuple(sorted({*grid, *extra})) for grid, extra in zip(grids, coarse, strict=True)]
    rows = [(width, full[1]) for width in grids[0]]
    columns = [(full[0], width) for width in grids[1]]
    inside = list(itertools.product(*coarse))
    found = twice(list(dict.fromkeys([*rows, *columns, *inside])))
    return Layer((grids[0], grids[1]), _surfaces(grids, coarse, even, full, found))


def _curve(
    width: int, full: Point, times: Callable[[Sequence[Point], bool], dict[Point, float]], even: int, slow: bool
) -> tuple[int, ...]:
    """Where to measure along one width: a few points, and halves wherever a line between two of them is off."""
    size = full[width]

    def at(value: int) -> Point:
        return tuple(value if index == width else whole for index, whole in enumerate(full))

    if slow:
        return tuple(_first_grid(size, slow, even))
    parts = kinds(_first_grid(size, slow, even), even)
    first = times([at(value) for part in parts for value in part], True)
    uneven = _TOLERANCE * first[at(size)]
    grid: set[int] = set()
    for part in parts:
        step = 1 if len(parts) == 1 else even if part[0] % even == 0 else 2
        known = {value: first[at(value)] for value in part}
        # A stretch whose ends take the same time cannot hide a step.
        pending = [(low, high) for low, high in itertools.pairwise(part) if abs(known[high] - known[low]) > uneven]
        while pending and len(known) < _MOST // len(parts):
            middles = {_middle(low, high, step): (low, high) for low, high in pending if high - low > step}
            if not middles:
                break
            measured = times([at(value) for value in middles], True)
            pending = []
            for value, (low, high) in middles.items():
                known[value] = measured[at(value)]
                line = np.interp(value, (low, high), (known[low], known[high]))
                if abs(known[value] - line) > uneven / 2:
                    halves = ((low, value), (value, high))
                    pending += [(a, b) for a, b in halves if abs(known[b] - known[a]) > uneven]
            # Large bends first, should the points run out.
            pending.sort(key=lambda pair: -abs(known[pair[1]] - known[pair[0]]))
            pending = pending[: max(0, _MOST // len(parts) - len(known))]
        grid |= set(known)
    return tuple(sorted(grid))


def _slips(found: dict[Point, float]) -> list[Point]:
    """What takes much longer than something that is at least as wide: steps of the device, or slips of the clock."""
    points = np.array(list(found))
    ms = np.array(list(found.values()))
    wider = (points[None, :, :] >= points[:, None, :]).all(2)
    least = np.where(wider, ms[None, :], np.inf).min(1)
    return [point for point, odd in zip(found, ms > _SLIP * least, strict=True) if odd]


def _middle(low: int, high: int, step: int) -> int:
    """One beside the middle: devices round widths to powers of two, and at these alone a staircase is a line."""
    steps = (high - low) // step
    return low + step * (steps // 2 + (steps > 2))


def _first_grid(size: int, slow: bool, even: int) -> list[int]:
    """A few widths; of fast layers, in pairs: devices round widths up to 8 or 16, and one more is a step."""
    if slow:
        return _nearby(size, (0.1, 0.25, 0.5, 0.75, 1.0) if even == 1 else (0.25, 0.5, 1.0), even)
    every = 8 if size <= 64 else 16 * -(-size // 128)
    pairs = {width for low in range(every, size, every) for width in (low, low + 1, low + 8)}
    return sorted({1, *_nearby(size, (0.1, 1.0), even)} | {width for width in pairs if width < size})


def _nearby(size: int, shares: Sequence[float], even: int) -> list[int]:
    """Widths near some shares of the full one: of each kind, if there are two."""
    near = {max(1, round(share * size)) for share in shares}
    if even > 1:
        whole = {max(1, round(width / even)) * even for width in near}
        near = {width for one in whole for width in (one - 1, one) if width <= size}
    return sorted({*near, size})


def _surfaces(
    grids: Sequence[Sequence[int]],
    coarse: Sequence[Sequence[int]],
    even: int,
    full: Point,
    found: dict[Point, float],
) -> np.ndarray:
    """One surface for every two kinds of widths."""
    surface = np.zeros([len(grid) for grid in grids])
    places = [{width: index for index, width in enumerate(grid)} for grid in grids]
    for pair in itertools.product(*[kinds(grid, even) for grid in grids]):
        nodes = [[width for width in ones if width in part] for ones, part in zip(coarse, pair, strict=True)]
        block = [[place[width] for width in part] for place, part in zip(places, pair, strict=True)]
        surface[np.ix_(*block)] = _surface(pair, nodes, full, found)
    return surface


def _surface(
    grids: Sequence[Sequence[int]], coarse: Sequence[Sequence[int]], full: Point, found: dict[Point, float]
) -> np.ndarray:
    """Product of the two curves, corrected by what the coarse grid says about it."""
    along = np.array([found[width, full[1]] for width in grids[0]])
    across = np.array([found[full[0], width] for width in grids[1]])
    whole = max(found[full], 1e-9)

    def product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.maximum(np.outer(first, second) / whole, 1e-9)

    at_rows = np.array([along[list(grids[0]).index(width)] for width in coarse[0]])
    at_columns = np.array([across[list(grids[1]).index(width)] for width in coarse[1]])
    measured = np.array([[found[a, b] for b in coarse[1]] for a in coarse[0]])
    ratio = np.clip(measured / product(at_rows, at_columns), 0.2, 5.0)  # a slip of the clock must not spread
    ratio = np.array([np.interp(grids[0], coarse[0], column) for column in ratio.T]).T
    ratio = np.array([np.interp(grids[1], coarse[1], row) for row in ratio])
    surface: np.ndarray = product(along, across) * ratio
    return surface
