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

    Attributes:
        cost: kept counts (groups,) -> value. If it falls when a count grows, what is selected is within the limit all
            the same, but something larger might be, too.
        limit: a share of `full`, or absolute.
        full: the whole network's value; None asks `cost` for it.
    """

    cost: Callable[[NDArray[np.int64]], float]
    limit: Written
    full: float | None = None


class Bound(NamedTuple):
    """A limit made absolute: `cost(counts) <= value`.

    Attributes:
        name: "macs", "params", "latency" or the name of another cost.
        given: the limit.
        value: the most that is allowed.
        cost: kept counts -> value; those of several networks -> an array.
        full: the whole network's cost.
    """

    name: str
    given: Limit
    value: float
    cost: Callable[[NDArray[np.int64]], Any]
    full: float

    def holds(self, counts: NDArray[np.int64]) -> bool:
        """Whether a network with these kept counts is within the limit."""
        return bool(self.cost(counts) <= self.value)

    def hold(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of several networks, (networks, groups), are within the limit."""
        return np.asarray(self.cost(counts) <= self.value)

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

        Args:
            cost: the network's costs and group sizes.

        Raises:
            BudgetError: there is no limit at all.
        """
        if not self:
            raise BudgetError("no limit was given: say what the network may cost, e.g. macs='50%' or params=2e5")
        every: dict[str, Extra] = {}
        if self.macs is not None:
            every["macs"] = Extra(cost.macs, self.macs)
        if self.params is not None:
            every["params"] = Extra(cost.params, self.params)
        more = {name: extra._replace(cost=_each(extra.cost)) for name, extra in self.extra.items()}
        return tuple(_bound(name, extra, cost.sizes) for name, extra in {**every, **more}.items())

    def without(self, name: str) -> Limits:
        """The same limits without that on an extra cost."""
        return replace(self, extra={other: extra for other, extra in self.extra.items() if other != name})


def unreachable(broken: Sequence[Bound], smallest: NDArray[np.int64], under: str) -> BudgetError:
    """The error for limits that even the smallest network breaks.

    Args:
        broken: those limits.
        smallest: kept counts of the smallest network.
        under: what keeps it from being smaller, e.g. `min_keep=0.10`.
    """
    parts = [
        f"{bound.name}={bound.given.written or bound.given} cannot be met: with {under} the smallest network "
        f"{'takes' if bound.name == LATENCY else 'has'} {bound.describe(float(bound.cost(smallest)))}"
        for bound in broken
    ]
    return BudgetError("; ".join(parts))


def _each(cost: Callable[[NDArray[np.int64]], float]) -> Callable[[NDArray[np.int64]], Any]:
    """A function of one network's counts, for those of several, too."""
    return lambda counts: cost(counts) if counts.ndim == 1 else np.array([cost(own) for own in counts])


def _bound(name: str, extra: Extra, sizes: NDArray[np.int64]) -> Bound:
    full = float(extra.cost(sizes)) if extra.full is None else float(extra.full)
    limit = Limit.parse(extra.limit, name)
    return Bound(name, limit, limit.of(full), extra.cost, full)
