"""Evolution with a guide: learn what each group's losses weigh, propose what weighs least, then mutate.

What the readers of a group lose at every width is known in closed form (`Guide`); how much the network minds is not. A
round begins at the best candidate so far and gives back to one group after another what it has lost. These neighbours
meet the limits like all candidates: the other groups pay. The weights of a sum over groups follow from all losses so
far, the near ones counting most, and candidates with the least sum are proposed. As many mutations as a round has
candidates, the paper's evolution, come next; then again whatever gained more the last time, until rounds gain nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lcprune.search.config import Search
from lcprune.search.samplers import RegularizedEvolution
from lcprune.search.space import FloatArray, Space

_KINDS = ("round", "mutations")
_BACK = (1.0, 0.5)  # shares of what was lost that neighbours get back: the second when the first helps no more
_HELPS = 0.02  # of the best loss: what a round has to gain for another one like it
_PRIOR = 0.02  # what the weights from before count, beside the mean group's neighbours
_MOST = 20.0  # factor by which a weight changes in one round
_REACH = (1.0, 0.3, 0.1)  # shares of its units by which a group's width may change at once


class Guide(Protocol):
    """What is known of candidates without judging them."""

    def starts(self) -> list[FloatArray]:
        """Candidates to begin with."""

    def lost(self, beta: FloatArray) -> FloatArray:
        """The share that each group's readers lose."""

    def neighbours(self, beta: FloatArray, back: float) -> list[FloatArray]:
        """Candidates that give this share of what it has lost back to one group; other groups pay."""

    def least(self, weights: FloatArray, beta: FloatArray, reach: float) -> FloatArray:
        """The candidate whose losses have the least weighted sum, among those whose widths are near this one's."""


class GuidedEvolution(RegularizedEvolution):
    """Rounds with a guide and mutations, whichever gained more the last time.

    Args:
        start: more candidates to begin with, after the guide's own.
    """

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray], guide: Guide) -> None:
        super().__init__(space, search, seed, [*guide.starts(), *start])
        self.guide = guide
        self._queue = [space.naive, *self.start]
        self._back = list(_BACK)  # empty when rounds are over
        self._judging_neighbours = False
        self._size = 0  # candidates of a round
        self._mutations = 0  # to be asked for before the next decision
        self._doing = ""  # one of the kinds, once there is something to begin at
        self._before = math.inf  # the best loss when that began
        self._gains: dict[str, float] = {}
        self._weights: FloatArray | None = None
        self._known: list[tuple[FloatArray, float]] = []  # what was lost, and the loss

    @property
    def room(self) -> int:
        """What belongs together is told before more is asked for."""
        if self._queue or self._mutations:
            return len(self._queue) or self._mutations
        return int(self.told == self.asked) if self._back else sys.maxsize

    def ask(self) -> FloatArray:
        """The next candidate; the first one is naive pruning."""
        self.asked += 1
        while self._back and not self._queue and not self._mutations:
            self._go_on()
        if self._queue:
            return self._queue.pop(0)
        self._mutations = max(0, self._mutations - 1)
        return self._propose()

    def _learn(self, beta: FloatArray, loss: float) -> None:
        super()._learn(beta, loss)
        if self._back:
            self._known.append((self.guide.lost(beta), loss))

    def _go_on(self) -> None:
        """Go on with a round, or decide what comes next."""
        if self._judging_neighbours:
            self._judging_neighbours = False
            self._queue = self._lightest()
            self._size += len(self._queue)
            return
        if not math.isfinite(self.best_loss):
            self._back = []
            return
        if self._doing:
            gain = self._gains[self._doing] = (self._before - self.best_loss) / (abs(self._before) or 1.0)
            if self._doing == "round" and gain < _HELPS:
                self._back.pop(0)
        self._before = self.best_loss
        if not self._back:
            return
        untried = [kind for kind in _KINDS if kind not in self._gains]
        self._doing = untried[0] if untried else max(_KINDS, key=lambda kind: self._gains[kind])
        if self._doing == "round":
            self._judging_neighbours = True
            self._queue = self.guide.neighbours(self.best, self._back[0])
            self._size = len(self._queue)
        else:
            self._mutations = max(1, self._size)

    def _lightest(self) -> list[FloatArray]:
        """Candidates with the least sum, by the weights that explain the losses so far: near the best, and farther."""
        lost = self.guide.lost(self.best)
        known = [(other, loss) for other, loss in self._known if np.isfinite(loss)]
        more = np.array([other - lost for other, _ in known])
        worse = np.array([loss for _, loss in known]) - self.best_loss
        typical, moved = float(np.median(worse)), float(np.median(np.abs(more).sum(1)))
        if not (typical > 0 and moved > 0):
            return []
        old = self._weights
        if old is None:
            old = np.full(len(lost), typical / moved)
        near = 1 / (1 + np.square(worse / max(typical, abs(self.best_loss) / 2)))
        more *= old  # so that a factor of the old weights is looked for
        square = (near[:, None] * more).T @ more
        prior = _PRIOR * float(np.trace(square)) / len(lost)
        factors = np.linalg.solve(square + prior * np.eye(len(lost)), (near * worse) @ more + prior)
        factors = factors.clip(1 / _MOST, _MOST)
        self._weights = old * factors
        return [self.guide.least(self._weights, self.best, reach) for reach in _REACH]

    def _propose(self) -> FloatArray:
        return self._mutate(1.0 - self.asked / self.search.total)
