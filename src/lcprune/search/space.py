"""What a candidate is: one shift per group, or one scale and one shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# One step of the affine form's scale multiplies it by exp(N(0, this)): about a factor of two either way.
_SCALE_SPREAD = float(np.log(2.0))


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
