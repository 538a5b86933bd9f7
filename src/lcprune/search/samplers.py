"""Proposing compensations: `ask` for a candidate, `tell` its loss, again.

Every sampler proposes beta = 0 first, so no search ends worse than naive pruning on its own objective, and
owns one random generator, so equal seeds give equal runs and no two candidates of a run are drawn alike.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy as np

from lcprune.errors import SearchError
from lcprune.search.config import Search
from lcprune.search.space import FloatArray, Space


class Sampler(ABC):
    """Proposes candidates of a space.

    Args:
        start: candidates to propose right after naive pruning, e.g. what another search found.
    """

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray] = ()) -> None:
        self.space, self.search, self.start = space, search, list(start)
        self.rng = np.random.default_rng(seed)
        self.asked = self.told = 0
        self.best: FloatArray = space.naive
        self.best_loss = math.inf

    @property
    def room(self) -> int:
        """How many candidates can be asked for before the next one is told."""
        return sys.maxsize

    def ask(self) -> FloatArray:
        """The next candidate; the first one is naive pruning."""
        self.asked += 1
        if self.asked == 1:
            return self.space.naive
        return self.start[self.asked - 2] if self.asked - 2 < len(self.start) else self._propose()

    def tell(self, beta: FloatArray, loss: float) -> None:
        """Report the loss of a candidate; one that is not a number counts as infinite."""
        loss = float(loss) if math.isfinite(loss) else math.inf
        if loss < self.best_loss:
            self.best, self.best_loss = beta, loss
        self.told += 1
        self._learn(beta, loss)

    @abstractmethod
    def _propose(self) -> FloatArray: ...

    def _learn(self, beta: FloatArray, loss: float) -> None:
        return None


class RegularizedEvolution(Sampler):
    """The paper's search: the fittest of a sample is mutated, the oldest of the pool dies."""

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray] = ()) -> None:
        super().__init__(space, search, seed, start[: search.pool - 1])
        self.members: deque[tuple[FloatArray, float]] = deque(maxlen=search.pool)
        self.mutations = max(1, math.floor(search.mutate * space.groups + 0.5))

    @property
    def room(self) -> int:
        """The first pool is told as a whole before it is mutated."""
        if self.asked < self.search.pool:
            return self.search.pool - self.asked
        return 0 if self.told < self.search.pool else sys.maxsize

    def _propose(self) -> FloatArray:
        if self.asked <= self.search.pool:
            return self.space.draw(self.rng)
        # The step falls linearly from 1 to 0 over the mutations; the paper prints the rising form.
        current = self.asked - self.search.pool - 1
        return self._mutate(1.0 - current / max(1, self.search.iterations))

    def _mutate(self, size: float) -> FloatArray:
        """A step of this size from the fittest of a sample."""
        if not self.members:
            raise SearchError("regularized evolution was asked for a mutation before any candidate was told")
        sample = self.rng.integers(len(self.members), size=self.search.sample)
        parent, _ = min((self.members[index] for index in sample), key=lambda member: member[1])
        groups = self.rng.choice(self.space.groups, size=self.mutations, replace=False)
        return self.space.step(self.rng, parent, groups, max(0.0, size))

    def _learn(self, beta: FloatArray, loss: float) -> None:
        self.members.append((beta, loss))  # a full deque drops its oldest member


class RandomSearch(Sampler):
    """Independent draws from the first pool's distribution: what a search must beat."""

    def _propose(self) -> FloatArray:
        return self.space.draw(self.rng)
