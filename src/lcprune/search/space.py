"""What a candidate is, and what is known of candidates before they are judged.

What groups lose in sum is least at a limit where no group could be wider for less: for a price of the limit, every
group takes the width at which its own loss and what it costs are least. What a group costs depends on the widths of its
neighbours, so groups take turns until nothing changes; the price is found by halving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcprune.select import Limits, Ranking
from lcprune.select.ranking import Counts

FloatArray = NDArray[np.float64]

# One step of the affine form's scale multiplies it by exp(N(0, this)): about a factor of two either way.
_SCALE_SPREAD = float(np.log(2.0))

_SWEEPS = 6  # over all groups, for one price
_PRICES = -14.0, 14.0  # logarithms of the lowest and the highest
_HALVINGS = 20


@dataclass(frozen=True, eq=False)
class Space:
    """Compensations of a network, and how far a random step goes in each.

    A candidate is an array: (groups,) shifts `beta`, or for the affine form (2, groups), scales first.

    Attributes:
        deviations: (groups,) standard deviation of the metric within each group, the paper's sigma_l.
        affine: whether candidates also scale the metric.
    """

    deviations: FloatArray
    affine: bool = False

    @classmethod
    def of(cls, scores: Sequence[FloatArray], form: str = "shift") -> Space:
        """The space of the groups with these scores.

        A group whose units all score the same has no deviation; it moves by that of a typical group, since a
        step of zero would leave it at beta = 0 for ever.
        """
        deviations = np.array([float(np.std(np.asarray(score, dtype=np.float64))) for score in scores])
        positive = deviations[deviations > 0]
        typical = float(np.median(positive)) if positive.size else 1.0
        return cls(np.where(deviations > 0, deviations, typical), form == "affine")

    @property
    def groups(self) -> int:
        """How many groups are compensated."""
        return len(self.deviations)

    @property
    def naive(self) -> FloatArray:
        """The candidate that changes nothing: naive pruning."""
        zeros = np.zeros(self.groups)
        return np.stack([np.ones(self.groups), zeros]) if self.affine else zeros

    def step(self, rng: np.random.Generator, start: FloatArray, groups: NDArray[np.int64], size: float) -> FloatArray:
        """`start` with noise N(0, size * sigma_l) on the given groups' shifts (and log-normal on scales)."""
        moved = start.copy()
        shifts = moved[1] if self.affine else moved
        shifts[groups] += rng.standard_normal(len(groups)) * self.deviations[groups] * size
        if self.affine:
            moved[0, groups] *= np.exp(rng.standard_normal(len(groups)) * _SCALE_SPREAD * size)
        return moved

    def draw(self, rng: np.random.Generator) -> FloatArray:
        """A first candidate: beta_l ~ N(0, sigma_l) for every group."""
        return self.step(rng, self.naive, np.arange(self.groups), 1.0)


class LossGuide:
    """Guides a search after repair, without judging anything, by what is lost at every width.

    Of each group, `curves` are what its readers lose with 0, 1, 2 ... of its best units left, falling to 0.
    """

    def __init__(
        self, ranking: Ranking, limits: Limits, space: Space, scores: Sequence[FloatArray], curves: Sequence[FloatArray]
    ) -> None:
        self.ranking, self.limits, self.space, self.scores, self.curves = ranking, limits, space, scores, curves
        self.bounds = limits.bounds(ranking.cost)

    def starts(self) -> list[FloatArray]:
        """The uniform cut, one that costs every group's readers the same share, and one with the least sum of them."""
        found = self.ranking.uniform(self.limits), self.ranking.level(self.curves, self.limits)
        counts = [np.array([len(units) for units in kept]) for kept in found]
        return [self._compensation(own) for own in (*counts, self._lightest())]

    def shares(self, betas: Sequence[FloatArray]) -> FloatArray:
        """The share of its units that each group keeps, (candidates, groups)."""
        many = np.stack(betas)
        alpha, shift = (many[:, 0], many[:, 1]) if self.space.affine else (None, many)
        return self.ranking.counts(self.limits, beta=shift, alpha=alpha) / self.ranking.sizes

    def _compensation(self, counts: Counts) -> FloatArray:
        """The compensation whose cut of the ranking leaves so many units of each group."""
        beta = self.space.naive
        shifts = beta[1] if self.space.affine else beta
        for group, (score, count) in enumerate(zip(self.scores, counts.tolist(), strict=True)):
            ordered, gone = np.sort(score), len(score) - count
            below = ordered[gone - 1] if gone else ordered[0] - self.space.deviations[group]
            shifts[group] = -(below + ordered[gone]) / 2
        return beta

    def _lightest(self) -> Counts:
        """Counts whose losses have the least sum."""
        low, high = _PRICES
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            counts = self._at(np.exp(middle))
            low, high = (low, middle) if all(bound.holds(counts) for bound in self.bounds) else (middle, high)
        return self._at(np.exp(high))

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
