"""Evolution with a guide: of many mutations, judge the one that a model of all losses so far expects most of.

A guide knows candidates to begin with, and the widths that a compensation leaves, without judging anything. Widths are
what the loss depends on; a Gaussian process over their logarithms (`surrogate.py`) learns it as candidates are judged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from lcprune.search.config import Search
from lcprune.search.samplers import Sampler
from lcprune.search.space import FloatArray, Space
from lcprune.search.surrogate import Surrogate

_CHILDREN = 40  # mutations that one is chosen from
_PARENTS = 5  # of the best so far, the better the oftener
_SMALLEST = -3.0  # logarithm of the smallest step


class Guide(Protocol):
    """What is known of candidates without judging them."""

    def starts(self) -> list[FloatArray]:
        """Candidates to begin with."""

    def shares(self, betas: Sequence[FloatArray]) -> FloatArray:
        """The share of its units that each group keeps, (candidates, groups)."""


class GuidedEvolution(Sampler):
    """Mutations of the best so far, sifted by a model.

    Args:
        start: more candidates to begin with, after the guide's own.
    """

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray], guide: Guide) -> None:
        super().__init__(space, search, seed, [*guide.starts(), *start])
        self.guide = guide
        self.model = Surrogate()
        self._losses: dict[tuple[float, ...], float] = {}  # of candidates by their shares; not a number until told
        self._parents: list[tuple[float, FloatArray]] = []
        # Matrices are small: several threads would only wait for one another, long where others want the cores, too.
        self._threads = ThreadpoolController()

    @property
    def room(self) -> int:
        """What a search begins with is told as a whole before it is mutated."""
        first = 1 + len(self.start)
        if self.asked < first:
            return first - self.asked
        return 0 if self.told < first else sys.maxsize

    def ask(self) -> FloatArray:
        """The next candidate; the first one is naive pruning."""
        beta = super().ask()
        self._losses.setdefault(self._shares([beta])[0], math.nan)
        return beta

    def _propose(self) -> FloatArray:
        children = [self._mutate() for _ in range(_CHILDREN)]
        if not math.isfinite(self.best_loss):
            return children[0]
        with self._threads.limit(limits=1, user_api="blas"):
            return self._most_promising(children)

    def _most_promising(self, children: list[FloatArray]) -> FloatArray:
        shares = self._shares(children)
        new = {own: beta for own, beta in zip(shares, children, strict=True) if own not in self._losses}
        if not new:
            return children[0]
        losses = np.array(list(self._losses.values()))
        # Those that are not judged yet count as middling, so that the next one is looked for elsewhere.
        losses[np.isnan(losses)] = np.nanmedian(losses)
        self.model.fit(np.log(list(self._losses)), losses)
        promise = self.model.improvement(np.log(list(new)))
        return list(new.values())[int(np.argmax(promise))]

    def _mutate(self) -> FloatArray:
        """A step of any size, in about as many groups as the paper's mutations change."""
        place = min(int(self.rng.exponential(1.2)), len(self._parents) - 1)
        count = 1 + self.rng.poisson(max(0.0, self.search.mutate * self.space.groups - 1))
        groups = self.rng.choice(self.space.groups, size=min(self.space.groups, count), replace=False)
        return self.space.step(self.rng, self._parents[place][1], groups, math.exp(self.rng.uniform(_SMALLEST, 0)))

    def _learn(self, beta: FloatArray, loss: float) -> None:
        self._losses[self._shares([beta])[0]] = loss
        ranked = sorted([*self._parents, (loss, beta)], key=lambda parent: parent[0])  # stable: the earlier one first
        self._parents = ranked[:_PARENTS]

    def _shares(self, betas: Sequence[FloatArray]) -> list[tuple[float, ...]]:
        return [tuple(own) for own in self.guide.shares(betas).tolist()]
