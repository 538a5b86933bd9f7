"""Latency as a limit: what the user wrote, and what became of it."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import BudgetError
from lcprune.latency.clock import Clock
from lcprune.select import Limits
from lcprune.select.limits import Extra

logger = logging.getLogger("lcprune")

LATENCY = "latency_ms"
_WRITTEN = re.compile(r"\s*(?P<number>(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>%|ms|us|s)\s*", re.IGNORECASE)
_MS = {"ms": 1.0, "us": 1e-3, "s": 1e3}
Kept = list[NDArray[np.int64]]


@dataclass(frozen=True)
class LatencyOutcome:
    """What became of a latency limit.

    Attributes:
        limit_ms: the most that was allowed.
        predicted_ms: by the table, for the network that was kept.
        measured_ms: the cut network; None where it cannot be run here (a table measured elsewhere).
        original_ms: the network before, measured in turns with the cut one.
        met: whether what was measured (or predicted, if nothing was) is within the limit.
        attempts: every network that was cut and measured.
        about: device, backend, batch and precision.
    """

    limit_ms: float
    predicted_ms: float
    measured_ms: float | None = None
    original_ms: float | None = None
    met: bool = True
    attempts: tuple[Mapping[str, float], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """The prediction's error as a share of what was measured."""
        return None if self.measured_ms is None else self.predicted_ms / self.measured_ms - 1

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "attempts": [dict(one) for one in self.attempts], "error": self.error}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LatencyOutcome:
        """What `to_json` gave."""
        values = {name: value for name, value in stored.items() if name != "error"}
        return cls(**{**values, "attempts": tuple(values.get("attempts", ()))})

    def __str__(self) -> str:
        text = f"limit {self.limit_ms:.4g} ms, predicted {self.predicted_ms:.4g} ms"
        if self.measured_ms is None:
            return f"{text}, not measured here"
        text += f" ({100 * (self.error or 0):+.1f} %), measured {self.measured_ms:.4g} ms"
        text += f" of {self.original_ms:.4g} ms" if self.original_ms else ""
        return text if self.met else f"{text}: missed, after {len(self.attempts)} attempts"


def parse_latency(limit: Any) -> tuple[float, bool]:
    """A limit as (number, whether it is milliseconds): `"3.5ms"`, `"60%"`, 0.6 (a share) or 3.5 (milliseconds).

    Raises:
        BudgetError: it is neither.
    """
    if isinstance(limit, str):
        match = _WRITTEN.fullmatch(limit)
        if match is None:
            raise BudgetError(f"latency {limit!r} is not understood: write milliseconds like 3.5ms or a share like 60%")
        number, unit = float(match["number"]), match["unit"].lower()
        number, absolute = (number / 100, False) if unit == "%" else (number * _MS[unit], True)
    else:
        valid = isinstance(limit, (int, float, np.number)) and not isinstance(limit, bool)
        number, absolute = (float(limit), float(limit) > 1) if valid else (math.nan, True)
    if not 0 < number < math.inf or (not absolute and number > 1):
        raise BudgetError(
            f"latency_ms={limit!r} is not a limit: write milliseconds like '3.5ms' or a share up to '100%'"
        )
    return number, absolute


def as_limits(limit: Any, whole: float) -> Any:
    """Latency limits, one or a list, as `Limits` takes them: milliseconds up to 1 become shares."""
    if isinstance(limit, (list, tuple, np.ndarray)):
        return [as_limits(one, whole) for one in limit]
    number, absolute = parse_latency(limit)
    return number if not absolute or number > 1 else min(1.0, number / whole)


def last_of(limit: Any) -> Any:
    """The last of several limits; one alone as it is."""
    return limit[-1] if isinstance(limit, (list, tuple, np.ndarray)) else limit


def tightened(limits: Limits, clock: Clock, predicted_ms: float) -> Limits:
    """The same limits with another one on the predicted latency."""
    share = min(1.0, predicted_ms / clock.whole)
    return replace(limits, extra={**limits.extra, LATENCY: Extra(clock.predict, share, clock.whole)})
