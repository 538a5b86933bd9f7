"""A limit as a person writes it, parsed once: `"50%"`, `0.5`, `62.7e6`, `"62.7M"`, `"3.5ms"`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from lcprune.errors import BudgetError

LATENCY = "latency"
SHARE, COUNT, MS = "share", "count", "ms"

_WRITTEN = re.compile(
    r"\s*(?P<number>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>%|ms|us|s|[kmgbt])?\s*", re.IGNORECASE
)
_COUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_FEWEST = 100  # MACs or parameters: no network has fewer, so a smaller number is a slip of the pen


@dataclass(frozen=True)
class Limit:
    """The most that a network may cost.

    Attributes:
        number: a share of the whole network's cost, from 0 to 1, or an absolute number.
        unit: "share", "count" (MACs, parameters) or "ms".
        written: how it was given, for messages.
    """

    number: float
    unit: str = SHARE
    written: str = field(default="", compare=False)

    @classmethod
    def parse(cls, given: Written, name: str = "macs") -> Limit:
        """A limit from what a person wrote; one that is parsed already stays as it is.

        Args:
            given: a share ("50%", or a number up to 1), an absolute number above 1 ("62.7M", 62.7e6), or "3.5ms".
            name: what is limited: "macs", "params", "latency" or a cost of the user's.

        Raises:
            BudgetError: it is not a limit on `name`; quotes what was written.
        """
        if isinstance(given, Limit):
            return given
        number, unit, written = _read(given, name)
        if not 0 < number < math.inf:
            raise BudgetError(f"{name}={written} must be more than 0: {_wanted(name)}")
        if unit == "%":
            if number > 100:
                raise BudgetError(f"{name}={written} is more than the whole network: at most 100% can be kept")
            return cls(_exact(number / 100), SHARE, written)
        if unit in (_COUNTS if name == LATENCY else _TIMES):
            raise BudgetError(f"{name}={written} has the wrong unit: {_wanted(name)}")
        if unit in _TIMES:
            return cls(_exact(number * _TIMES[unit]), MS, written)
        if unit:
            number = _exact(number * _COUNTS[unit])
        elif number <= 1:
            return cls(number, SHARE, written)
        if name == LATENCY:
            return cls(number, MS, written)
        if name in ("macs", "params") and number < _FEWEST:
            meant = f"did you mean {number:g}% (a share) or {number:g}M (a number)?"
            raise BudgetError(f"{name}={written} is ambiguous; {meant}")
        return cls(number, COUNT, written)

    def of(self, whole: float) -> float:
        """The most that is allowed, of a network that costs `whole`."""
        return self.number * whole if self.unit == SHARE else self.number

    @property
    def label(self) -> str:
        """For people: `50 %`, `62.7 M`, `3.5 ms`."""
        if self.unit == SHARE:
            return f"{100 * self.number:.4g} %"
        return f"{self.number:g} ms" if self.unit == MS else format_count(self.number)

    def __str__(self) -> str:
        """For files: `parse` reads it again."""
        if self.unit == SHARE:
            return f"{100 * self.number:.12g}%"
        return f"{self.number:.12g}{'ms' if self.unit == MS else ''}"


Written = Limit | float | str
Several = Written | Sequence[Written]


def parse_limits(given: Several, name: str = "macs") -> tuple[Limit, ...]:
    """One limit or several, as a tuple; `Limit.parse` says what each may be."""
    every: Any = given if is_list(given) else [given]
    return tuple(Limit.parse(one, name) for one in every)


def is_list(given: Any) -> bool:
    """Whether several limits were given."""
    return hasattr(given, "__iter__") and not isinstance(given, str)


def network_name(method: str, limits: Mapping[str, Limit]) -> str:
    """What a network that meets these limits is called in tables: `lcp 50 %`."""
    words = {"macs": "", "params": " parameters", LATENCY: " latency"}
    parts = [
        limit.label + (words[resource] if len(limits) > 1 or resource != "macs" else "")
        for resource, limit in limits.items()
    ]
    return f"{method} {' and '.join(parts)}"


def format_count(value: float) -> str:
    """`62743104` as `62.74 M`."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:g}"


def _read(given: Any, name: str) -> tuple[float, str, str]:
    """Number, unit and the text for messages."""
    if isinstance(given, str):
        match = _WRITTEN.fullmatch(given)
        if match is not None:
            return float(match["number"]), (match["unit"] or "").lower(), repr(given)
    elif not isinstance(given, bool) and isinstance(given, Real):
        return float(given), "", f"{float(given):g}"
    raise BudgetError(f"{name}={given!r} is not a limit: {_wanted(name)}")


def _wanted(name: str) -> str:
    if name == LATENCY:
        return "give milliseconds such as '3.5ms', or a share such as '60%'"
    return f"give a share such as {name}='50%' or {name}=0.5, or a number such as {name}=62.7e6 or {name}='62.7M'"


def _exact(number: float) -> float:
    """Without what multiplying added to the digits that were written."""
    return float(f"{number:.12g}")
