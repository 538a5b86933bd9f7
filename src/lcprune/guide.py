"""What a search after repair knows of candidates without judging them: what the readers of each group lose.

The sum of what groups lose is least at a limit where no group could be wider for less: for a price of the limit, every
group takes the width at which its own loss and what it costs are least. What a group costs depends on the widths of its
neighbours, so groups take turns until nothing changes; the price is found by halving.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lcprune.search.space import FloatArray, Space
from lcprune.select import Limits, Ranking

Counts = NDArray[np.int64]
_SWEEPS = 6  # over all groups, for one price
_PRICES = -14.0, 14.0  # logarithms of the lowest and the highest
_HALVINGS = 20


class LossGuide:
    """Guides a search by what is lost at every width.

    Args:
        ranking: of the units.
        limits: that candidates meet.
        space: of candidates.
        scores: that units are ranked by.
        curves: of each group, what is lost with 0, 1, 2 ... of its best units left, falling to 0.
    """

    def __init__(
        self, ranking: Ranking, limits: Limits, space: Space, scores: Sequence[FloatArray], curves: Sequence[FloatArray]
    ) -> None:
        self.ranking, self.limits, self.space, self.scores, self.curves = ranking, limits, space, scores, curves
        self.bounds = limits.bounds(ranking.cost)

    def starts(self) -> list[FloatArray]:
        """The uniform cut, one that costs every group's readers the same share, and one with the least sum of them."""
        found = self.ranking.uniform(self.limits), self.ranking.level(self.curves, self.limits)
        level = [self._compensation(np.array([len(units) for units in kept])) for kept in found]
        return [*level, self.lightest()]

    def shares(self, betas: Sequence[FloatArray]) -> FloatArray:
        """The share of its units that each group keeps, (candidates, groups)."""
        many = np.stack(betas)
        alpha, shift = (many[:, 0], many[:, 1]) if self.space.affine else (None, many)
        return self.ranking.counts(self.limits, beta=shift, alpha=alpha) / self.ranking.sizes

    def lightest(self) -> FloatArray:
        """The candidate whose losses have the least sum."""
        low, high = _PRICES
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._holds(self._at(np.exp(middle))) else (middle, high)
        return self._compensation(self._at(np.exp(high)))

    def _compensation(self, counts: Counts) -> FloatArray:
        """The compensation whose cut of the ranking leaves so many units of each group."""
        beta = self.space.naive
        shifts = beta[1] if self.space.affine else beta
        for group, (score, count) in enumerate(zip(self.scores, counts.tolist(), strict=True)):
            ordered, gone = np.sort(score), len(score) - count
            below = ordered[gone - 1] if gone else ordered[0] - self.space.deviations[group]
            shifts[group] = -(below + ordered[gone]) / 2
        return beta

    def _at(self, price: float) -> Counts:
        """Counts that are best one by one, for a price of the limits."""
        counts = self.ranking.sizes.copy()
        cost = self._cost(counts)
        for _ in range(_SWEEPS):
            before = counts.copy()
            for group, (curve, own) in enumerate(zip(self.curves, self.ranking.widths, strict=True)):
                if len(own) > 1:
                    other = counts.copy()
                    other[group] = own[-1] if counts[group] != own[-1] else own[0]
                    slope = (cost - self._cost(other)) / (counts[group] - other[group])
                    best = own[np.argmin(curve[own] + price * slope * own)]
                    if best != counts[group]:
                        counts[group] = best
                        cost = self._cost(counts)
            if (before == counts).all():
                break
        return counts

    def _cost(self, counts: Counts) -> float:
        return sum(bound.cost(counts) / bound.value for bound in self.bounds)

    def _holds(self, counts: Counts) -> bool:
        return all(bound.holds(counts) for bound in self.bounds)
