"""What a search after repair knows of candidates without judging them: what the readers of each group lose.

A network that loses `sum(weight * lost)` is best at a limit where no group could be wider for less: for a price of the
limit, every group takes the width at which its own loss and what it costs are least. What a group costs depends on the
widths of its neighbours, so groups take turns until nothing changes; the price is found by halving.
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
_FACTORS = 7.0  # logarithm of the largest by which losses grow or fall together
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
        return [*level, self.least(np.ones(len(self.curves)), self.space.naive, 1.0)]

    def lost(self, beta: FloatArray) -> FloatArray:
        """The share that each group's readers lose."""
        return self._lost(self._counts(beta))

    def neighbours(self, beta: FloatArray, back: float) -> list[FloatArray]:
        """Candidates that give this share of what it has lost back to one group; the others pay, all by one factor.

        A group that has lost nothing loses as much as the others in the middle.
        """
        counts = self._counts(beta)
        lost = self._lost(counts)
        typical = float(np.median(lost[lost > 0])) if lost.any() else 0.0
        found = []
        for group, count in enumerate(counts.tolist()):
            own = (1 - back) * lost[group] if lost[group] else typical
            if self._narrowest(group, own) != count:
                found.append(self._compensation(self._paid(lost, group, own)))
        return found

    def _paid(self, lost: FloatArray, group: int, own: float) -> Counts:
        """Counts that meet the limits, where one group loses its own share and the others `lost` times one factor."""

        def at(factor: float) -> Counts:
            shares = factor * lost
            shares[group] = own
            return np.array([self._narrowest(*pair) for pair in enumerate(shares.tolist())])

        low, high = -_FACTORS, _FACTORS
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._holds(at(np.exp(middle))) else (middle, high)
        return at(np.exp(high))

    def _narrowest(self, group: int, share: float) -> int:
        """The width of a group that loses at most this share."""
        widths = self.ranking.widths[group]
        return int(widths[np.searchsorted(self.curves[group][widths], share, side="right") - 1])

    def least(self, weights: FloatArray, beta: FloatArray, reach: float) -> FloatArray:
        """The candidate whose losses have the least weighted sum, among those within reach of one.

        Args:
            weights: of the groups.
            beta: the one.
            reach: share of a group's units by which its width may differ.
        """
        around = self._counts(beta)
        room = reach * self.ranking.sizes
        widths = [w[np.abs(w - n) <= most] for w, n, most in zip(self.ranking.widths, around, room, strict=True)]
        curves = [weight * curve[w] for weight, curve, w in zip(weights, self.curves, widths, strict=True)]
        low, high = _PRICES
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._holds(self._at(widths, curves, np.exp(middle))) else (middle, high)
        return self._compensation(self._at(widths, curves, np.exp(high)))

    def _compensation(self, counts: Counts) -> FloatArray:
        """The compensation whose cut of the ranking leaves so many units of each group."""
        beta = self.space.naive
        shifts = beta[1] if self.space.affine else beta
        for group, (score, count) in enumerate(zip(self.scores, counts.tolist(), strict=True)):
            ordered, gone = np.sort(score), len(score) - count
            below = ordered[gone - 1] if gone else ordered[0] - self.space.deviations[group]
            shifts[group] = -(below + ordered[gone]) / 2
        return beta

    def _at(self, widths: Sequence[Counts], curves: Sequence[FloatArray], price: float) -> Counts:
        """Counts that are best one by one, for a price of the limits."""
        counts = np.array([own[0] for own in widths])
        cost = self._cost(counts)
        for _ in range(_SWEEPS):
            before = counts.copy()
            for group, (curve, own) in enumerate(zip(curves, widths, strict=True)):
                if len(own) > 1:
                    other = counts.copy()
                    other[group] = own[-1] if counts[group] != own[-1] else own[0]
                    slope = (cost - self._cost(other)) / (counts[group] - other[group])
                    best = own[np.argmin(curve + price * slope * own)]
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

    def _counts(self, beta: FloatArray) -> Counts:
        alpha, shift = (beta[0], beta[1]) if beta.ndim == 2 else (None, beta)
        return self.ranking.counts(self.limits, beta=shift, alpha=alpha)

    def _lost(self, counts: Counts) -> FloatArray:
        return np.array([curve[count] for curve, count in zip(self.curves, counts.tolist(), strict=True)])
