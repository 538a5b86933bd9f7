"""Limits on what a network may cost: parsed once, then a handful of comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import BudgetError

_UNITS = {"macs": " MACs", "params": " parameters", "latency_ms": " ms"}


class CostModel(Protocol):
    """What selection needs of a cost: `lcprune.cost.Cost` is one."""

    names: tuple[str, ...]
    sizes: NDArray[np.int64]

    def macs(self, counts: Any) -> Any: ...

    def params(self, counts: Any) -> Any: ...


class Extra(NamedTuple):
    """A further cost and its limit, e.g. a latency table.

    Attributes:
        cost: kept counts (groups,) -> value. If it falls when a count grows, what is selected is within the limit all
            the same, but something larger might be, too.
        limit: a fraction of `full` (at most 1) or an absolute value (above 1).
        full: the whole network's value; None asks `cost` for it.
    """

    cost: Callable[[NDArray[np.int64]], float]
    limit: float
    full: float | None = None


class Bound(NamedTuple):
    """A limit made absolute: `cost(counts) <= value`.

    Attributes:
        name: "macs", "params" or the name of an extra cost.
        given: what the user wrote.
        value: the most that is allowed.
        cost: kept counts -> value.
        full: the whole network's cost.
    """

    name: str
    given: float
    value: float
    cost: Callable[[NDArray[np.int64]], float]
    full: float

    def holds(self, counts: NDArray[np.int64]) -> bool:
        """Whether a network with these kept counts is within the limit."""
        return bool(self.cost(counts) <= self.value)

    def describe(self, cost: float) -> str:
        """`cost` for people: `3.1 M MACs (2.5 %)`."""
        share = f" ({100 * cost / self.full:.1f} %)" if self.full else ""
        return f"{_short(cost)}{_UNITS.get(self.name, f' of {self.name}')}{share}"


@dataclass(frozen=True)
class Limits:
    """What the pruned network may cost at most; several limits mean that all of them hold.

    Args:
        macs: multiply-adds, as a fraction of the whole network (at most 1) or absolute (above 1).
        params: parameters, likewise.
        extra: name -> `Extra` (or a plain `(cost, limit, full)` tuple) for any other cost.

    A limit above the whole network's cost holds already and keeps everything.

    Raises:
        BudgetError: a limit is zero, negative or not a number.
    """

    macs: float | None = None
    params: float | None = None
    extra: Mapping[str, Extra | tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, limit in self.given().items():
            check_limit(name, limit)

    def __bool__(self) -> bool:
        return bool(self.given())

    def given(self) -> dict[str, float]:
        """Every limit under its name, as the user wrote it."""
        named = {"macs": self.macs, "params": self.params}
        named |= {name: Extra(*extra).limit for name, extra in self.extra.items()}
        return {name: limit for name, limit in named.items() if limit is not None}

    def bounds(self, cost: CostModel) -> tuple[Bound, ...]:
        """The limits made absolute for one network.

        Args:
            cost: the network's costs and group sizes.

        Raises:
            BudgetError: there is no limit at all.
        """
        if not self:
            raise BudgetError("no limit was given: say what the network may cost, e.g. macs=0.5 or params=2e5")
        bounds = []
        if self.macs is not None:
            bounds.append(_bound("macs", self.macs, cost.macs, None, cost.sizes))
        if self.params is not None:
            bounds.append(_bound("params", self.params, cost.params, None, cost.sizes))
        for name, entry in self.extra.items():
            extra = Extra(*entry)
            bounds.append(_bound(name, extra.limit, extra.cost, extra.full, cost.sizes))
        return tuple(bounds)


def unreachable(broken: Sequence[Bound], smallest: NDArray[np.int64], under: str) -> BudgetError:
    """The error for limits that even the smallest network breaks.

    Args:
        broken: those limits.
        smallest: kept counts of the smallest network.
        under: what keeps it from being smaller, e.g. `min_keep=0.10`.
    """
    parts = []
    for bound in broken:
        text = (
            f"{bound.name}={bound.given:g} cannot be met: with {under} the smallest network has "
            f"{bound.describe(float(bound.cost(smallest)))}"
        )
        if 1 < bound.given <= 100 < bound.full:
            text += f"; a limit above 1 is absolute, {bound.given:g} % is {bound.name}={bound.given / 100:g}"
        parts.append(text)
    return BudgetError("; ".join(parts))


def check_limit(name: str, limit: Any) -> None:
    """Refuse, with a BudgetError, what is not a limit."""
    wanted = f"give a fraction of the whole network such as {name}=0.5, or an absolute value above 1"
    if isinstance(limit, (bool, np.bool_)) or not isinstance(limit, (int, float, np.number)):
        raise BudgetError(f"{name}={limit!r} is not a number: {wanted}")
    if not 0 < float(limit) < math.inf:
        raise BudgetError(f"{name}={limit} is not a limit: {wanted}")


def _bound(
    name: str, given: float, cost: Callable[[Any], float], full: float | None, sizes: NDArray[np.int64]
) -> Bound:
    whole = float(cost(sizes)) if full is None else float(full)
    return Bound(name, given, given * whole if given <= 1 else float(given), cost, whole)


def _short(value: float) -> str:
    for scale, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.4g}"
