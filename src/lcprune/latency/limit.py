"""A latency limit: what is asked for, what is known of latencies beforehand, and what became of the limit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import LatencyError
from lcprune.files import write_json
from lcprune.latency.backends import Backend, check_backend
from lcprune.limit import LATENCY, Limit, Several, is_list, parse_limits

Predict = Callable[[NDArray[np.int64]], float]


@dataclass(frozen=True)
class Latency:
    """A latency limit, and how latency is known.

    Attributes:
        limit: "60%" of the network's own latency, or "3.5ms"; a list of them for `pareto` and for Algorithm 1.
        batch: samples at a time.
        backend: what runs the network: one of `lcprune.latency.BACKENDS`, or a `Backend` of your own.
        table: None measures networks here. Otherwise nothing is measured: a function from kept counts to milliseconds
            that never falls when a count grows, or a JSON file with points measured on another device,
            `[{"macs": 4.1e9, "ms": 12.5}, ...]`.

    Raises:
        BudgetError: a limit is none.
        LatencyError: there is no such backend or batch size.
    """

    limit: Several
    batch: int = 1
    backend: str | Backend = "eager"
    table: Predict | str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        limits = parse_limits(self.limit, LATENCY)
        object.__setattr__(self, "limit", limits if is_list(self.limit) else limits[0])
        if isinstance(self.batch, bool) or not isinstance(self.batch, (int, np.integer)) or self.batch < 1:
            raise LatencyError(f"batch={self.batch!r} is not a batch size: give a whole number from 1 on")
        if isinstance(self.backend, str):
            check_backend(self.backend)

    @classmethod
    def of(cls, given: Latency | Several | None) -> Latency | None:
        """A latency limit from one, or from a plain limit such as "60%"."""
        return given if given is None or isinstance(given, Latency) else cls(given)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits; one alone, too, is a tuple."""
        return parse_limits(self.limit, LATENCY)


@dataclass(frozen=True)
class Table:
    """Milliseconds by MACs, of a few cuts of one network: straight lines between points, never falling.

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
        return float(np.interp(macs, *np.array(self.points).T))

    def macs(self, ms: float) -> float:
        """The most MACs that take so long; beyond the ends those of the ends."""
        macs, times = np.array(self.points).T
        return float(np.interp(ms, times, macs))

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
        about: dict[str, Any] = stored if isinstance(stored, dict) else {"points": stored}
        try:
            pairs = [(float(point["macs"]), float(point["ms"])) for point in about.pop("points", ())]
        except (TypeError, KeyError, ValueError):
            pairs = []
        if len(pairs) < 2 or not all(0 < value < np.inf for pair in pairs for value in pair):
            raise LatencyError(
                f'latency table {path} must hold two or more points such as {{"macs": 4.1e9, "ms": 12.5}}, all positive'
            )
        return cls.through(pairs, about)


@dataclass(frozen=True)
class LatencyOutcome:
    """What became of a latency limit.

    Attributes:
        limit_ms: the most that was allowed.
        measured_ms: the cut network; None where nothing is measured here.
        original_ms: the network before, measured in turns with the cut one.
        predicted_ms: by the user's function or table; None where the network was measured.
        met: whether what was measured (or predicted) is within the limit.
        attempts: every network that was cut and measured.
        about: device, backend and batch, as far as they are known.
    """

    limit_ms: float
    measured_ms: float | None = None
    original_ms: float | None = None
    predicted_ms: float | None = None
    met: bool = True
    attempts: tuple[Mapping[str, float], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "attempts": [dict(one) for one in self.attempts]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LatencyOutcome:
        """What `to_json` gave."""
        return cls(**{**stored, "attempts": tuple(stored["attempts"])})

    def __str__(self) -> str:
        if self.measured_ms is None:
            return f"limit {self.limit_ms:.4g} ms, predicted {self.predicted_ms:.4g} ms, not measured here"
        text = f"limit {self.limit_ms:.4g} ms, measured {self.measured_ms:.4g} ms of {self.original_ms:.4g} ms"
        return text if self.met else f"{text}: missed, after {len(self.attempts)} attempts"
