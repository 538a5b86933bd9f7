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
from threadpoolctl import ThreadpoolController

from lcprune.errors import SearchError
from lcprune.search.config import Search
from lcprune.search.space import FloatArray, LossGuide, Space
from lcprune.search.surrogate import Surrogate

# Of guided evolution:
_CHILDREN = 40  # mutations that one is chosen from
_PARENTS = 5  # of the best so far, the better the oftener
_SMALLEST = -3.0  # logarithm of the smallest step


class Sampler(ABC):
    """Proposes candidates of a space: naive pruning, then those of `start`, e.g. what another search found."""

    first = 0  # candidates that are told as a whole before one is proposed that depends on them

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray] = ()) -> None:
        self.space, self.search, self.start = space, search, [space.naive, *start]
        self.rng = np.random.default_rng(seed)
        self.asked = self.told = 0
        self.best: FloatArray = space.naive
        self.best_loss = math.inf

    @property
    def room(self) -> int:
        """How many candidates can be asked for before the next one is told."""
        if self.asked < self.first:
            return self.first - self.asked
        return 0 if self.told < self.first else sys.maxsize

    def ask(self) -> FloatArray:
        """The next candidate; the first one is naive pruning."""
        self.asked += 1
        return self.start[self.asked - 1] if self.asked <= len(self.start) else self._propose()

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


class RandomSearch(Sampler):
    """Independent draws from the first pool's distribution: what a search must beat."""

    def _propose(self) -> FloatArray:
        return self.space.draw(self.rng)


class RegularizedEvolution(Sampler):
    """The paper's search: the fittest of a sample is mutated, the oldest of the pool dies."""

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray] = ()) -> None:
        super().__init__(space, search, seed, start[: search.pool - 1])
        self.first = search.pool
        self.members: deque[tuple[FloatArray, float]] = deque(maxlen=search.pool)  # a full one drops its oldest
        self.mutations = max(1, math.floor(search.mutate * space.groups + 0.5))

    def _propose(self) -> FloatArray:
        if self.asked <= self.search.pool:
            return self.space.draw(self.rng)
        if not self.members:
            raise SearchError("regularized evolution was asked for a mutation before any candidate was told")
        # The step falls linearly from 1 to 0 over the mutations; the paper prints the rising form.
        size = 1.0 - (self.asked - self.search.pool - 1) / max(1, self.search.total - self.search.pool)
        sample = self.rng.integers(len(self.members), size=self.search.sample)
        parent, _ = min((self.members[index] for index in sample), key=lambda member: member[1])
        groups = self.rng.choice(self.space.groups, size=self.mutations, replace=False)
        return self.space.step(self.rng, parent, groups, max(0.0, size))

    def _learn(self, beta: FloatArray, loss: float) -> None:
        self.members.append((beta, loss))


class GuidedEvolution(Sampler):
    """Of many mutations of the best so far, the one that a model of all losses so far expects most of.

    A guide knows the widths that a compensation leaves. Widths are what the loss depends on; a Gaussian process over
    their logarithms (`surrogate.py`) learns it as candidates are judged.
    """

    def __init__(self, space: Space, search: Search, seed: int, start: Sequence[FloatArray], guide: LossGuide) -> None:
        super().__init__(space, search, seed, [*guide.starts(), *start])
        self.guide, self.first = guide, len(self.start)
        self.model = Surrogate()
        self._losses: dict[tuple[float, ...], float] = {}  # of candidates by their shares; not a number until told
        self._parents: list[tuple[float, FloatArray]] = []
        # Matrices are small: several threads would only wait for one another, long where others want the cores, too.
        self._threads = ThreadpoolController()

    def ask(self) -> FloatArray:
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


def make_sampler(
    space: Space, search: Search, seed: int, start: Sequence[FloatArray] = (), guide: LossGuide | None = None
) -> Sampler:
    """The sampler that `search.algorithm` names; without a guide, "guided" is "evolution"."""
    if guide is not None and search.algorithm == "guided":
        return GuidedEvolution(space, search, seed, start, guide)
    kind = RandomSearch if search.algorithm == "random" else RegularizedEvolution
    return kind(space, search, seed, [*(guide.starts() if guide else ()), *start])
