"""Limits of Algorithm 1's rounds: a sequence that the user gives, or equal steps down to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lcprune.cost import Cost
from lcprune.errors import ConfigError
from lcprune.select import Limits
from lcprune.select.limits import Extra, check_limit

Limit = float | Sequence[float] | None


def limit_schedule(
    cost: Cost,
    steps: int = 1,
    latency: Callable[[Any], float] | None = None,
    *,
    macs: Limit = None,
    params: Limit = None,
    latency_ms: Limit = None,
    whole_ms: float | None = None,
) -> list[Limits]:
    """The limits of each round; absolute if there are several, since later networks are smaller.

    Args:
        cost: of the network before the first round.
        steps: number of rounds for limits given as one number: equal steps from the whole network to it.
        latency: kept counts -> milliseconds, if `latency_ms` is given.
        macs: a limit, or one per round.
        params: likewise.
        latency_ms: likewise.
        whole_ms: latency of the network, of which shares are taken; None asks `latency`.

    Raises:
        ConfigError: sequences of different lengths, or a schedule that grows.
    """
    if latency_ms is not None and latency is None:
        raise ConfigError("latency_ms= needs latency=, a function from kept counts to milliseconds")
    given: dict[str, Limit] = {"macs": macs, "params": params, "latency_ms": latency_ms}
    rounds = {len(_values(limit)) for limit in given.values() if _is_sequence(limit)}
    if len(rounds) > 1:
        raise ConfigError(f"the schedules of limits have different lengths: {sorted(rounds)}")
    if rounds and steps not in (1, *rounds):
        raise ConfigError(
            f"steps={steps}, but the schedule of limits has {rounds.pop()} of them; give one or the other"
        )
    if steps < 1 or rounds == {0}:
        raise ConfigError("Algorithm 1 needs at least one step")
    count = rounds.pop() if rounds else steps
    if count == 1:
        one = {name: _values(limit)[0] if limit is not None else None for name, limit in given.items()}
        return [_limits(one, latency, whole_ms)]
    fulls = {"macs": cost.macs, "params": cost.params, "latency_ms": latency}
    columns: dict[str, list[float]] = {}
    whole = None
    for name, limit in given.items():
        if limit is not None:
            known = whole_ms if name == "latency_ms" else None
            full = float(fulls[name](cost.sizes)) if known is None else known  # type: ignore[misc]
            columns[name] = _column(name, limit, count, full)
            if name == "latency_ms":
                # As shares of the first network: milliseconds below 1 would be taken for shares of a later one.
                whole, columns[name] = full, [min(1.0, value / full) for value in columns[name]]
    return [
        _limits({name: column[index] for name, column in columns.items()}, latency, whole) for index in range(count)
    ]


def _column(name: str, limit: Limit, count: int, full: float) -> list[float]:
    for value in _values(limit):
        check_limit(name, value)
    absolute = [value * full if value <= 1 else float(value) for value in _values(limit)]
    if len(absolute) == 1:
        return [float(value) for value in np.linspace(full, absolute[0], count + 1)[1:]]
    if any(later > earlier for earlier, later in itertools.pairwise(absolute)):
        raise ConfigError(f"{name}={list(_values(limit))} grows: Algorithm 1 tightens its limit from step to step")
    return absolute


def _limits(values: dict[str, Any], latency: Callable[[Any], float] | None, whole: float | None = None) -> Limits:
    extra = {}
    if values.get("latency_ms") is not None and latency is not None:
        extra["latency_ms"] = Extra(latency, values["latency_ms"], whole)
    return Limits(macs=values.get("macs"), params=values.get("params"), extra=extra)


def _is_sequence(limit: Limit) -> bool:
    return isinstance(limit, (Sequence, np.ndarray)) and not isinstance(limit, str)


def _values(limit: Limit) -> list[float]:
    return list(limit) if _is_sequence(limit) else [limit]  # type: ignore[arg-type,list-item]
