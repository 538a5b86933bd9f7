"""Limits of Algorithm 1's rounds: a sequence that the user gives, or equal steps down to one."""

from __future__ import annotations

import itertools

import numpy as np

from lcprune.cost import Cost
from lcprune.errors import ConfigError
from lcprune.latency.clock import Clock
from lcprune.limit import COUNT, LATENCY, MS, Limit, Several, parse_limits
from lcprune.select import Limits


def limit_schedule(
    cost: Cost,
    steps: int = 1,
    *,
    macs: Several | None = None,
    params: Several | None = None,
    latency: Several | None = None,
    clock: Clock | None = None,
) -> list[Limits]:
    """The limits of each round; absolute if there are several, since later networks are smaller.

    Args:
        cost: of the network before the first round.
        steps: number of rounds for limits given as one: equal steps from the whole network to it.
        macs: a limit, or one per round.
        params: likewise.
        latency: likewise.
        clock: what predicts the latency; None if there is no limit on it.

    Raises:
        ConfigError: sequences of different lengths, or a schedule that grows.
        BudgetError: something is not a limit.
    """
    written = {"macs": macs, "params": params, LATENCY: latency}
    given = {name: parse_limits(limit, name) for name, limit in written.items() if limit is not None}
    rounds = {len(limits) for limits in given.values()} - {1}
    if len(rounds) > 1:
        raise ConfigError(f"the schedules of limits have different lengths: {sorted(rounds)}")
    if rounds and steps not in (1, *rounds):
        raise ConfigError(
            f"steps={steps}, but the schedule of limits has {rounds.pop()} of them; give one or the other"
        )
    if steps < 1 or rounds == {0}:
        raise ConfigError("Algorithm 1 needs at least one step")
    count = rounds.pop() if rounds else steps
    if count > 1:
        wholes = {"macs": float(cost.macs(cost.sizes)), "params": float(cost.params(cost.sizes))}
        wholes[LATENCY] = 0.0 if clock is None else clock.whole
        given = {name: _column(name, limits, count, wholes[name]) for name, limits in given.items()}
    found = []
    for index in range(count):
        own = {name: limits[index] for name, limits in given.items()}
        extra = {} if clock is None or LATENCY not in own else clock.extra(own[LATENCY])
        found.append(Limits(own.get("macs"), own.get("params"), extra))
    return found


def _column(name: str, limits: tuple[Limit, ...], count: int, whole: float) -> tuple[Limit, ...]:
    """One absolute limit per round."""
    values = [limit.of(whole) for limit in limits]
    if any(later > earlier for earlier, later in itertools.pairwise(values)):
        shown = ", ".join(limit.written for limit in limits)
        raise ConfigError(f"{name}=[{shown}] grows: Algorithm 1 tightens its limit from step to step")
    if len(values) == 1:
        values = np.linspace(whole, values[0], count + 1)[1:].tolist()
        limits = limits * count
    unit = MS if name == LATENCY else COUNT
    return tuple(Limit(value, unit, limit.written) for value, limit in zip(values, limits, strict=True))
