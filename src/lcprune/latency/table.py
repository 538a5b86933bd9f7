"""Milliseconds by MACs: a few cuts of one network, measured here or on another device."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lcprune.errors import LatencyError
from lcprune.files import write_json


@dataclass(frozen=True)
class Table:
    """Latency as a function of MACs: straight lines between points, never falling.

    Attributes:
        points: (MACs, milliseconds), both rising.
        about: device, backend and batch, as far as they are known.
    """

    points: tuple[tuple[float, float], ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]], about: Mapping[str, Any] | None = None) -> Table:
        """A table through measured points, in any order; nothing larger counts as faster than something smaller."""
        macs, ms = np.array(sorted(points), dtype=np.float64).T
        return cls(tuple(zip(macs.tolist(), np.maximum.accumulate(ms).tolist(), strict=True)), dict(about or {}))

    def ms(self, macs: float) -> float:
        """Milliseconds of a network with so many MACs; beyond the ends those of the ends."""
        return float(np.interp(macs, *self._columns))

    def macs(self, ms: float) -> float:
        """The most MACs that take so long; beyond the ends those of the ends."""
        macs, times = self._columns
        return float(np.interp(ms, times, macs))

    @property
    def _columns(self) -> tuple[list[float], list[float]]:
        return [macs for macs, _ in self.points], [ms for _, ms in self.points]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON."""
        points = [{"macs": macs, "ms": ms} for macs, ms in self.points]
        write_json(path, {**self.about, "points": points}, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Read a table: a JSON list of `{"macs": ..., "ms": ...}`, or an object that has it as `points`.

        Raises:
            LatencyError: there is none, or not such a list.
        """
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise LatencyError(f"latency table {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise LatencyError(f"latency table {path} is not JSON: {error}") from None
        points: Any = stored.get("points") if isinstance(stored, Mapping) else stored
        try:
            pairs = [(float(point["macs"]), float(point["ms"])) for point in points]
        except (TypeError, KeyError, ValueError):
            pairs = []
        if len(pairs) < 2 or not all(0 < value < np.inf for pair in pairs for value in pair):
            raise LatencyError(
                f'latency table {path} must hold two or more points such as {{"macs": 4.1e9, "ms": 12.5}}, all positive'
            )
        about = {name: value for name, value in stored.items() if name != "points"} if points is not stored else {}
        return cls.through(pairs, about)
