"""Limits on what a network may cost, made absolute for one network: a handful of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lcprune.cost import Cost
from lcprune.errors import BudgetError
from lcprune.limit import LATENCY, Limit, Written, format_count

_UNITS = {"macs": " MACs", "params": " parameters", LATENCY: " ms"}


class Extra(NamedTuple):
    """A further cost and its limit, e.g. a latency.

    If the cost falls when a count grows, what is selected is within the limit all the same, but something larger might
    be, too.
    """

    cost: Callable[[NDArray[np.int64]], float]  # of kept counts (groups,)
    limit: Written  # a share of `full`, or absolute
    full: float | None = None  # the whole network's value; None asks `cost` for it


class Bound(NamedTuple):
    """A limit made absolute: `cost(counts) <= value`."""

    name: str  # "macs", "params", "latency" or the name of another cost
    given: Limit
    value: float
    cost: Callable[[NDArray[np.int64]], Any]  # of kept counts (groups,), or of several networks' at once
    full: float  # the whole network's cost

    def holds(self, counts: NDArray[np.int64]) -> bool:
        """Whether a network with these kept counts is within the limit."""
        return bool(self.cost(counts) <= self.value)

    def describe(self, cost: float) -> str:
        """`cost` for people: `3.1 M MACs (2.5 %)`."""
        share = f" ({100 * cost / self.full:.1f} %)" if self.full else ""
        return f"{format_count(float(f'{cost:.4g}'))}{_UNITS.get(self.name, f' of {self.name}')}{share}"


@dataclass(frozen=True)
class Limits:
    """What the pruned network may cost at most; several limits mean that all of them hold.

    Args:
        macs: multiply-adds; a `Limit`, or what `Limit.parse` reads.
        params: parameters, likewise.
        extra: name -> `Extra` for any other cost.

    A limit above the whole network's cost holds already and keeps everything.

    Raises:
        BudgetError: something is not a limit.
    """

    macs: Written | None = None
    params: Written | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("macs", "params"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Limit.parse(getattr(self, name), name))
        extra = {name: one._replace(limit=Limit.parse(one.limit, name)) for name, one in self.extra.items()}
        object.__setattr__(self, "extra", extra)

    def __bool__(self) -> bool:
        return self.macs is not None or self.params is not None or bool(self.extra)

    def bounds(self, cost: Cost) -> tuple[Bound, ...]:
        """The limits made absolute for one network.

        Raises:
            BudgetError: there is no limit at all.
        """
        if not self:
            raise BudgetError("no limit was given: say what the network may cost, e.g. macs='50%' or params=2e5")
        every = {name: Extra(getattr(cost, name), getattr(self, name)) for name in ("macs", "params")}
        every |= {name: one._replace(cost=_each(one.cost)) for name, one in self.extra.items()}
        bounds = []
        for name, (value, limit, given) in every.items():
            if isinstance(limit, Limit):
                full = float(value(cost.sizes) if given is None else given)
                bounds.append(Bound(name, limit, limit.of(full), value, full))
        return tuple(bounds)

    def without(self, name: str) -> Limits:
        """The same limits without that on an extra cost."""
        return replace(self, extra={other: extra for other, extra in self.extra.items() if other != name})


def unreachable(broken: Sequence[Bound], smallest: NDArray[np.int64], under: str) -> BudgetError:
    """The error for limits that even the smallest network breaks, and what keeps it from being smaller."""
    parts = [
        f"{bound.name}={bound.given.written or bound.given} cannot be met: with {under} the smallest network "
        f"{'takes' if bound.name == LATENCY else 'has'} {bound.describe(float(bound.cost(smallest)))}"
        for bound in broken
    ]
    return BudgetError("; ".join(parts))


def _each(cost: Callable[[NDArray[np.int64]], float]) -> Callable[[NDArray[np.int64]], Any]:
    """A function of one network's counts, for those of several, too."""
    return lambda counts: cost(counts) if counts.ndim == 1 else np.array([cost(own) for own in counts])
