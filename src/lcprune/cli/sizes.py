"""Sizes as a person writes them: `50%`, `62.7M`, `0.4M`, `1.2G`, `0.5`, `62700000`."""

from __future__ import annotations

import math
import re
from typing import Any

_SIZE = re.compile(r"\s*(?P<number>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>%|[kKmMgGbBtT])?\s*", re.IGNORECASE)
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def parse_size(text: Any) -> float:
    """Turn what a person wrote into a fraction (at most 1) or an absolute number.

    >>> parse_size("50%"), parse_size("0.5"), parse_size("62.7M")
    (0.5, 0.5, 62700000.0)

    Raises:
        ValueError: it is no size, not positive, or more than the whole.
    """
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{str(text)!r} is not a size; write a share like 50% or 0.5, or a number like 62.7M")
    number, unit = float(match["number"]), (match["unit"] or "").lower()
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{str(text)!r} must be more than 0; write a share like 50% or 0.5, or a number like 62.7M")
    if unit == "%":
        if number > 100:
            raise ValueError(f"{str(text)!r} is more than the whole network; at most 100% can be kept")
        return number / 100
    if not unit and 1 < number < 100:
        # 50 without a unit is a slip of the pen: no network has fifty multiply-adds.
        raise ValueError(f"{str(text)!r} is ambiguous; did you mean {number:g}% (a share) or {number:g}M (a number)?")
    return round(number * _UNITS[unit], 6) if unit else number


def parse_sizes(text: Any) -> list[float]:
    """Several sizes: `20%,30%,50%`, or a list of them."""
    parts = text if isinstance(text, (list, tuple)) else [part for part in str(text).split(",") if part.strip()]
    if not parts:
        raise ValueError("no size given; write for example 25%,50%")
    sizes = [parse_size(part) for part in parts]
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"{text!r} names a size twice")
    return sizes


def format_size(value: float) -> str:
    """A limit for a person: `50 %` or `62.7 M`."""
    return format_share(value) if value <= 1 else format_count(value)


def format_share(value: float) -> str:
    """`0.5` as `50 %`."""
    return f"{100 * value:.4g} %"


def format_count(value: float) -> str:
    """`62743104` as `62.7 M`."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:g}"
