"""Latency tables: milliseconds of each layer shape over a grid of widths, and what they predict for a network.

A table is JSON (`docs/how-to/latency.md` describes it), so that it can be measured elsewhere: on a phone, a board.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import LatencyError
from lcprune.files import write_json
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.fusion import FUSIONS, fuse
from lcprune.latency.operations import Operation, distinct, operations

FORMAT = "lcprune latency table"
VERSION = 1
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Layer:
    """The time of one layer shape.

    Attributes:
        widths: per width, the grid, rising.
        ms: milliseconds, (len of each grid).
    """

    widths: tuple[tuple[int, ...], ...]
    ms: FloatArray

    def rising(self, multiple_of: int = 1, even: int = 1) -> Layer:
        """The layer made monotone: nothing wider is faster, among widths of the same kind.

        If only multiples of a number can occur, the grid is first reduced to these; the full width always can.
        Multiples of 2 and 4 are too few on it for that.

        Args:
            multiple_of: of the widths that occur.
            even: multiples of this are a kind of their own.

        Returns:
            Grids that rise within each kind: multiples of `even` first, then the others.
        """
        grids, ms = [], self.ms
        blocks = multiple_of if multiple_of >= 8 else 1
        for axis, grid in enumerate(self.widths):
            usable = [width for width in grid if width % blocks == 0 or width == grid[-1]]
            parts = [
                np.maximum.accumulate(np.take(ms, [grid.index(width) for width in kind], axis), axis)
                for kind in kinds(usable, even)
            ]
            grids.append(tuple(width for kind in kinds(usable, even) for width in kind))
            ms = np.concatenate(parts, axis)
        return Layer(tuple(grids), ms)


def kinds(grid: Sequence[int], even: int) -> list[list[int]]:
    """The widths of a grid by kind: multiples of `even`, and the others; all together if few are of one kind."""
    parts = [[width for width in grid if width % even == 0], [width for width in grid if width % even]]
    return parts if min(map(len, parts)) >= 2 else [list(grid)]


@dataclass(frozen=True)
class Correction:
    """From the sum over layers to the network: `max(floor, offset + factor * sum)`.

    Attributes:
        offset: milliseconds that no layer accounts for.
        factor: how layers inside the network compare with layers alone.
        floor: milliseconds that the host takes to issue all operators, however narrow they are.
    """

    offset: float = 0.0
    factor: float = 1.0
    floor: float = 0.0


@dataclass(frozen=True, eq=False)
class Table:
    """Times of a network's layers on one device.

    Attributes:
        layers: layer shape -> its times.
        batch: samples at a time.
        backend: what ran them.
        device: where.
        precision: of the weights, e.g. "float32".
        fusion: which operators the backend joins; as for `fusion.fuse`.
        even: multiples of this many channels may take less time than narrower layers; 1 where none do.
        correction: from layers to the network.
        rounded: likewise for networks whose widths are multiples of a number, where that was measured.
        network: fingerprint of the network it was measured for; empty if it is for any that has these layers.
        versions: of the libraries that ran it.
        calibration: the whole networks that the correction was measured on.
        seconds: how long it took to measure.
    """

    layers: Mapping[str, Layer]
    batch: int = 1
    backend: str = "eager"
    device: str = ""
    precision: str = "float32"
    fusion: str = "none"
    even: int = 1
    correction: Correction = field(default_factory=Correction)
    rounded: Mapping[int, Correction] = field(default_factory=dict)
    network: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    calibration: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON."""
        write_json(path, self.to_json(), indent=1)

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "network": self.network,
            "device": self.device,
            "backend": self.backend,
            "batch": self.batch,
            "precision": self.precision,
            "fusion": self.fusion,
            "even": self.even,
            "versions": dict(self.versions),
            "correction": _plain(self.correction),
            "rounded": {str(width): _plain(correction) for width, correction in self.rounded.items()},
            "calibration": [dict(entry) for entry in self.calibration],
            "seconds": round(self.seconds, 2),
            "layers": [
                {
                    "shape": shape,
                    "widths": [list(grid) for grid in layer.widths],
                    "ms": np.round(layer.ms, 6).tolist(),
                }
                for shape, layer in self.layers.items()
            ],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Read a table.

        Raises:
            LatencyError: there is none, or it is not complete; the message names what is missing.
        """
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise LatencyError(f"latency table {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise LatencyError(f"latency table {path} is not JSON: {error}") from None
        try:
            return cls.from_json(stored)
        except LatencyError as error:
            raise LatencyError(f"latency table {path}: {error}") from None

    @classmethod
    def from_json(cls, stored: Any) -> Table:
        """A table from plain JSON; raises `LatencyError` as `load` does."""
        if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
            raise LatencyError(f'"format" must be "{FORMAT}"')
        if stored.get("version") != VERSION:
            raise LatencyError(f'"version" is {stored.get("version")!r}, and {VERSION} is what can be read')
        if not isinstance(stored.get("layers"), list) or not stored["layers"]:
            raise LatencyError('"layers" is missing or empty')
        layers = dict(_layer(position, entry) for position, entry in enumerate(stored["layers"]))
        fusion = stored.get("fusion", "none")
        batch, even = _whole("batch", stored.get("batch")), _whole("even", stored.get("even", 1))
        if fusion not in FUSIONS:
            raise LatencyError(f'"fusion" is {fusion!r}: choose one of {", ".join(FUSIONS)}')
        correction = _correction("correction", stored.get("correction") or {})
        rounded = {
            int(width): _correction(f"rounded {width}", given)
            for width, given in (stored.get("rounded") or {}).items()
            if str(width).isdigit()
        }
        texts = {name: str(stored.get(name, "")) for name in ("network", "device", "backend", "precision")}
        return cls(
            layers,
            batch,
            fusion=fusion,
            even=even,
            correction=correction,
            rounded=rounded,
            versions=stored.get("versions") or {},
            calibration=tuple(stored.get("calibration") or ()),
            seconds=_number("seconds", stored, "seconds", 0.0),
            **texts,
        )


def _plain(correction: Correction) -> dict[str, float]:
    return {"offset_ms": correction.offset, "factor": correction.factor, "floor_ms": correction.floor}


def _correction(name: str, given: Mapping[str, Any]) -> Correction:
    fields = (("offset_ms", 0.0), ("factor", 1.0), ("floor_ms", 0.0))
    correction = Correction(*(_number(name, given, *item) for item in fields))
    if correction.factor < 0:
        raise LatencyError(f'"{name}" has factor {correction.factor:g}: it cannot be negative')
    return correction


def _layer(position: int, entry: Any) -> tuple[str, Layer]:
    name = entry.get("shape") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise LatencyError(f'layer {position} has no "shape"')
    widths, ms = entry.get("widths"), entry.get("ms")
    if ms is None:
        raise LatencyError(f'layer "{name}" has no "ms": it was not measured')
    if not isinstance(widths, list) or not all(isinstance(grid, list) and grid for grid in widths):
        raise LatencyError(f'layer "{name}": "widths" must be a list of grids, one per width')
    try:
        values = np.asarray(ms, dtype=np.float64)
        grids = tuple(tuple(int(width) for width in grid) for grid in widths)
    except (TypeError, ValueError):
        raise LatencyError(f'layer "{name}": "ms" and "widths" must hold numbers alone, as many in every row') from None
    if values.shape != tuple(len(grid) for grid in grids):
        raise LatencyError(
            f'layer "{name}": "ms" has the shape {values.shape}, and "widths" ask for {tuple(len(g) for g in grids)}'
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise LatencyError(f'layer "{name}": "ms" must be finite and not negative')
    if any(list(grid) != sorted(set(grid)) or grid[0] < 1 for grid in grids):
        raise LatencyError(f'layer "{name}": "widths" must rise, from 1 on')
    return name, Layer(grids, values)


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LatencyError(f'"{name}" is {value!r}: a whole number from 1 on is wanted')
    return value


def _number(where: str, given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise LatencyError(f'"{name}" of "{where}" is {value!r}: a number is wanted')
    return float(value)


def fingerprint(found: Sequence[Operation], graph: ChannelGraph) -> str:
    """A short hash of what a network runs: its layers and groups, not its weights."""
    described = [[one.key, [[axis.fixed, axis.parts] for axis in one.axes], one.count] for one in distinct(found)]
    text = json.dumps([described, graph.cost.sizes.tolist()])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def blank(graph: ChannelGraph, batch: int = 1, fusion: str = "activation") -> dict[str, Any]:
    """A table to be filled in elsewhere: every layer shape, with a grid of widths and no times.

    Args:
        graph: of the network.
        batch: samples at a time.
        fusion: which operators the other device joins, as for `fusion.fuse`.
    """
    layers: dict[str, list[list[int]]] = {}
    for one in distinct(fuse(operations(graph, batch), fusion)):
        widths = [sorted({max(1, round(full * part / 8)) for part in range(1, 9)}) for full in one.full]
        if one.key not in layers or widths > layers[one.key]:
            layers[one.key] = widths
    empty = Table({}, batch, fusion=fusion, backend="", network="").to_json()
    empty["layers"] = [{"shape": key, "widths": widths, "ms": None} for key, widths in layers.items()]
    return empty
