"""The global ranking: sort each group once, then every candidate is one threshold.

A unit's place in the removal order is `alpha[group] * score + beta[group]`. Neither changes the order inside
a group, so groups are sorted once and a candidate only interleaves them. The plain loop (walk the merged
order from the bottom, skip groups at their floor, stop as soon as the limits hold) always removes a prefix
of the order of the units above the floors. Costs only fall along it, so the prefix is found by bisection.

`multiple_of` makes the steps of that walk wider, nothing else: a group goes from one allowed width to the
next when the last unit in between has its turn. So its width is the plain walk's, rounded up, and the limits
are judged by the rounded widths.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lcprune.cost import Cost
from lcprune.errors import ConfigError, MetricError, SearchError
from lcprune.select.limits import Bound, Limits, unreachable

Counts = NDArray[np.int64]
Kept = list[NDArray[np.int64]]  # of each group, the units that stay


class Ranking:
    """Units sorted by score inside their groups, ready to be cut at any limit.

    Args:
        scores: one array (units,) per group, in the order of `cost.names`; a higher score is kept longer, and
            of equal ones the first goes first.
        cost: what kept counts cost.
        min_keep: fraction of each group's units that always stays, rounded up; at least one unit does.
        multiple_of: cut widths are multiples of this. A group may also stay whole, and does if it has no
            smaller multiple above its floor.
        floors: (groups,) higher floors than `min_keep` gives, e.g. those from before an earlier cut.

    Attributes:
        sizes: (groups,) units of each group.
        widths: what each group can keep, falling: its size first, its floor last.
        floors: (groups,) the fewest units that each group can keep.
    """

    def __init__(
        self,
        scores: Sequence[ArrayLike],
        cost: Cost,
        min_keep: float = 0.10,
        multiple_of: int = 1,
        floors: ArrayLike | None = None,
    ) -> None:
        if not 0 <= min_keep <= 1:
            raise ConfigError(f"min_keep={min_keep} is not a fraction: give one from 0 to 1, e.g. min_keep=0.10")
        if multiple_of < 1 or multiple_of != int(multiple_of):
            raise ConfigError(f"multiple_of={multiple_of} is not a width: give a whole number from 1 on, e.g. 8")
        self.cost, self.min_keep, self.multiple_of = cost, float(min_keep), int(multiple_of)
        self.sizes = np.asarray(cost.sizes, dtype=np.int64)
        arrays = _checked(scores, cost.names, self.sizes)
        self._order = [np.argsort(array, kind="stable") for array in arrays]
        widths = [self._widths(int(size)) for size in self.sizes]
        lowest = np.zeros(len(widths)) if floors is None else self._vector("floors", floors)
        self.widths = widths = [w[(w >= low) | (w == w[0])] for w, low in zip(widths, lowest, strict=True)]
        self.floors = np.array([steps[-1] for steps in widths], dtype=np.int64)
        # Steps of the walk, group after group: which group narrows, at which score, and at which share of it.
        self._first = np.array([steps[0] - steps[1] if len(steps) > 1 else 0 for steps in widths], dtype=np.int64)
        self._group = np.repeat(np.arange(len(widths)), [len(steps) - 1 for steps in widths])
        self._score = _joined([a[o[a.size - w[1:] - 1]] for a, o, w in zip(arrays, self._order, widths, strict=True)])
        self._share = _joined([1 - (w[1:] + w[:-1]) / (2 * w[0]) for w in widths])

    def select(self, limits: Limits, beta: ArrayLike | None = None, alpha: ArrayLike | None = None) -> Kept:
        """Remove units from the bottom of the merged order until the limits hold.

        The result is maximal: putting back what was removed last would break a limit.

        Args:
            limits: what the network may cost.
            beta: (groups,) added to every score of the group; None is zero, naive pruning.
            alpha: (groups,) positive factors of the scores; None is one.

        Returns:
            The kept units of each group, sorted, int64.

        Raises:
            BudgetError: the limits cannot be met; the message has the smallest network that can be had.
        """
        return self.kept(self.counts(limits, beta, alpha))

    def counts(self, limits: Limits, beta: ArrayLike | None = None, alpha: ArrayLike | None = None) -> Counts:
        """Like `select`, but only how many units each group keeps, int64 (groups,).

        With `beta` and `alpha` of several candidates, (candidates, groups), it is (candidates, groups), too.
        """
        value = self._score
        if alpha is not None:
            factors = self._vector("alpha", alpha)
            if (factors <= 0).any():
                raise SearchError(f"alpha has {factors.min():g}: factors must be positive, or a group's order turns")
            value = factors[..., self._group] * value
        if beta is not None:
            value = value + self._vector("beta", beta)[..., self._group]
        return self._cut(value, limits)

    def uniform(self, limits: Limits) -> Kept:
        """Keep the same fraction of every group: the largest one that meets the limits, then what still fits.

        Each width is the fraction's, rounded to the nearest allowed one and never below the floor. Where
        several groups round at the very same fraction, they narrow in network order until the limits hold.
        Arguments and errors are those of `select`.
        """
        return self.kept(self._cut(self._share, limits))

    def level(self, shares: Sequence[NDArray[np.float64]], limits: Limits) -> Kept:
        """Narrow the groups until each has lost the same share: the least one that meets the limits.

        Args:
            shares: of each group, what is lost with 0, 1, 2 ... of its best units left, falling to 0.
            limits: as for `select`, whose errors these are.
        """
        value = _joined([own[steps[1:]] for own, steps in zip(shares, self.widths, strict=True)])
        return self.kept(self._cut(value, limits))

    def schedule(self, fractions: Mapping[str, float], limits: Limits | None = None) -> Kept:
        """Keep the given fraction of each named group, rounded to the nearest allowed width.

        Args:
            fractions: group name or pattern (`layer1.*`) -> fraction of units to keep. A name goes before
                patterns, an earlier pattern before a later one; groups that nothing matches stay whole.
            limits: checked, if given.

        Raises:
            ConfigError: a name matches no group, or a fraction is not from 0 to 1.
            BudgetError: the schedule breaks a limit.
        """
        keep = _fractions(fractions, self.cost.names)
        removed = np.bincount(self._group[self._share < 1 - keep[self._group]], minlength=len(self.sizes))
        counts = self._narrowed(removed)
        if limits is not None:
            broken = [bound for bound in limits.bounds(self.cost) if not bound.holds(counts)]
            if broken:
                raise unreachable(broken, counts, "this schedule")
        return self.kept(counts)

    def kept(self, counts: ArrayLike) -> Kept:
        """The best units of each group, (groups,) so many."""
        numbers = np.asarray(counts, dtype=np.int64)
        return [np.sort(order[order.size - n :]) for order, n in zip(self._order, numbers.tolist(), strict=True)]

    def _cut(self, value: NDArray[np.float64], limits: Limits) -> Counts:
        """Counts, (..., groups), after as few steps as meet the limits; steps go by `value`, (..., steps)."""
        bounds, shape = limits.bounds(self.cost), (*value.shape[:-1], len(self.sizes))
        if _hold(bounds, self.sizes[None]).all():
            return np.broadcast_to(self.sizes, shape).copy()
        if not _hold(bounds, self.floors[None]).all():
            wide = f" and multiple_of={self.multiple_of}" if self.multiple_of > 1 else ""
            broken = [bound for bound in bounds if not bound.holds(self.floors)]
            raise unreachable(broken or bounds, self.floors, f"min_keep={self.min_keep:.2f}{wide}")
        # Stable: equal values go in network order, and inside a group from the lowest score up.
        order = np.argsort(value.reshape(-1, value.shape[-1]), axis=-1, kind="stable")
        candidates, steps = order.shape
        turns = np.empty_like(order)  # when each step has its turn: rising inside a group
        np.put_along_axis(turns, order, np.arange(steps)[None], axis=-1)
        # Lifted group by group and candidate by candidate, all turns rise: one search finds what went of every group.
        groups = np.arange(candidates * len(self.sizes)).reshape(candidates, len(self.sizes))
        rising = (turns + steps * groups[:, self._group]).ravel()
        begins = steps * np.arange(candidates)[:, None] + np.searchsorted(self._group, np.arange(len(self.sizes)))
        low, high = np.zeros(candidates, dtype=np.int64), np.full(candidates, steps)

        def after(count: NDArray[np.int64]) -> Counts:
            return self._narrowed(np.searchsorted(rising, steps * groups + count[:, None]) - begins)

        while (high - low > 1).any():  # after `low` steps a limit is broken, after `high` steps all hold
            middle = (low + high) // 2
            holds = _hold(bounds, after(middle))
            low, high = np.where(holds, low, middle), np.where(holds, middle, high)
        return after(high).reshape(shape)

    def _narrowed(self, steps: NDArray[np.int64]) -> Counts:
        # The first step goes down to a multiple, every further one to the next.
        return np.where(steps > 0, self.sizes - self._first - (steps - 1) * self.multiple_of, self.sizes)

    def _widths(self, size: int) -> Counts:
        # The tolerance is for fractions that are not exact: 7 % of 100 is 7, though 0.07 * 100 > 7.
        floor = max(1, math.ceil(self.min_keep * size - 1e-9))
        step = self.multiple_of
        lowest = step * -(-floor // step)
        return np.array([size, *range((size - 1) // step * step, lowest - 1, -step)], dtype=np.int64)

    def _vector(self, name: str, given: ArrayLike) -> NDArray[np.float64]:
        vector = np.asarray(given, dtype=np.float64)
        if vector.shape[-1:] != self.sizes.shape:
            raise SearchError(f"{name} has shape {vector.shape}: one number per group, {self.sizes.shape}, is wanted")
        finite = np.isfinite(vector).reshape(-1, len(self.sizes)).all(0)
        if not finite.all():
            raise SearchError(f"{name} of group {self.cost.names[int(np.argmin(finite))]!r} is not finite")
        return vector


def _hold(bounds: Sequence[Bound], counts: Counts) -> NDArray[np.bool_]:
    """Which of the candidates, (candidates, groups), are within all limits."""
    held = np.ones(len(counts), dtype=bool)
    for bound in bounds:
        held[held] = bound.cost(counts[held]) <= bound.value
    return held


def _joined(arrays: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *arrays])


def _checked(scores: Sequence[Any], names: Sequence[str], sizes: Counts) -> list[NDArray[np.float64]]:
    if len(scores) != len(names):
        raise MetricError(f"there are {len(scores)} score arrays for {len(names)} groups: give one per group")
    arrays = [np.asarray(array, dtype=np.float64) for array in scores]
    for name, array, size in zip(names, arrays, sizes.tolist(), strict=True):
        if array.shape != (size,):
            raise MetricError(f"scores of group {name!r} have shape {array.shape}: one per unit, ({size},), is wanted")
        if not np.isfinite(array).all():
            raise MetricError(f"scores of group {name!r} are not all finite, so they cannot be ranked")
    return arrays


def _fractions(fractions: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """(groups,) the fraction to keep of each, 1 where no name or pattern matches."""
    for key, fraction in fractions.items():
        if isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ConfigError(f"schedule {key!r}: {fraction!r} is not a fraction; give one from 0 to 1, e.g. 0.5")
        if key not in names and not any(fnmatchcase(name, key) for name in names):
            near = difflib.get_close_matches(key, names, n=3, cutoff=0.3) or list(names[:3])
            raise ConfigError(f"schedule {key!r} matches no group; there are e.g. {', '.join(near)}")

    def fraction_of(name: str) -> float:
        matching = (fraction for key, fraction in fractions.items() if fnmatchcase(name, key))
        return fractions[name] if name in fractions else next(matching, 1.0)

    return np.array([fraction_of(name) for name in names], dtype=np.float64)
