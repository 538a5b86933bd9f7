"""Uniform, naive, scheduled and layer-compensated pruning: what is ranked, learned and kept."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lcprune import baselines  # noqa: F401  (they register themselves: whoever gets `methods` from here gets all)
from lcprune.errors import ConfigError, SearchError
from lcprune.evaluate import REPAIR, Evaluation, Evaluator
from lcprune.method import Method, methods
from lcprune.search import CANDIDATES, Found, LossGuide, Search, Space, make_sampler, objective, run_search
from lcprune.search.space import FloatArray
from lcprune.select import Kept
from lcprune.task import Choice, Task, plain_fields

__all__ = ["LcP", "Learned", "Naive", "Schedule", "Uniform", "compensate", "learn", "methods"]

logger = logging.getLogger("lcprune")

_FOR_GROUPS = 2  # candidates of a search, for every group that is measured alone
_GUIDED = 200  # candidates of a search with a guide, at least


@methods.register("uniform")
@dataclass(frozen=True)
class Uniform(Method):
    """The same share of every group stays."""

    def choose(self, task: Task) -> Choice:
        return Choice(task.ranking.uniform(task.limits))

    def reselect(self, task: Task, choice: Choice) -> Kept:
        return task.ranking.uniform(task.limits)


@methods.register("naive")
@dataclass(frozen=True)
class Naive(Method):
    """One global ranking by the metric alone: the lowest go until the limit holds."""

    def choose(self, task: Task) -> Choice:
        return Choice(task.ranking.select(task.limits))

    def reselect(self, task: Task, choice: Choice) -> Kept:
        return task.ranking.select(task.limits)


@methods.register("schedule")
@dataclass(frozen=True)
class Schedule(Method):
    """The shares that the user gives for each group; limits are checked, if there are any.

    Attributes:
        shares: group name or pattern -> share to keep.
    """

    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.shares:
            raise ConfigError('a schedule needs shares to keep, e.g. method=lcprune.Schedule({"layer1.*": 0.5})')

    @property
    def scheduled(self) -> bool:
        return True

    def choose(self, task: Task) -> Choice:
        kept = task.ranking.schedule(self.shares, task.limits if task.limits else None)
        return Choice(kept, meta={"schedule": dict(self.shares)})


@methods.register("lcp", needs_data=True)
@dataclass(frozen=True)
class LcP(Method):
    """Layer-compensated pruning: the global ranking by metric + beta, beta learned by search.

    Attributes:
        search: how betas are looked for.
    """

    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        if not isinstance(self.search, Search):
            raise SearchError(
                f"search={self.search!r} is not a Search: write lcprune.LcP(search=lcprune.Search(pool=64))"
            )

    def own_metric(self, evaluation: Evaluation) -> str:
        return "rebuilt" if evaluation.after == REPAIR else "l2"

    def choose(self, task: Task) -> Choice:
        started = time.perf_counter()
        learned = learn(task, counted(task, self.search))
        found, work = learned.found, learned.task.evaluator.work
        seconds = {
            "total": time.perf_counter() - started,
            "planning": found.planning,
            "preparing": work.preparing,
            "evaluating": work.evaluating,
        }
        meta = {
            **learned.meta,
            "form": self.search.form,
            "difference": found.difference,
            "naive_difference": found.naive,
            "candidates": len(found.history),
            "evaluations": work.evaluations,
        }
        return Choice(found.kept, found.history, meta, seconds, scores=learned.task.scores)

    def reselect(self, task: Task, choice: Choice) -> Kept:
        return compensate(task, np.asarray(choice.meta["beta"]))


@dataclass(frozen=True, eq=False)
class Learned:
    """What a search found, and the task as it was judged.

    Attributes:
        found: what the search found.
        task: ranked by the scores that the search began with.
    """

    found: Found
    task: Task

    @property
    def meta(self) -> dict[str, Any]:
        """How it was learned, for the plan."""
        return {"beta": self.found.beta.tolist(), "after": self.task.evaluation.after}


def counted(task: Task, search: Search, limits: int = 1) -> Search:
    """The search as it is done here: how many candidates, in all and asked for together, where it does not say.

    With a guide, half of the paper's find more than all of them without. Several limits that share one search have all.
    """
    few = task.quick is not None and search.algorithm == "guided" and limits == 1
    total = min(CANDIDATES, max(_GUIDED, _FOR_GROUPS * len(task.graph.groups))) if few else CANDIDATES
    return task.engine.settle(search.counted(total))


def learn(task: Task, search: Search, start: Sequence[FloatArray] = ()) -> Learned:
    """Search for the compensation whose selection moves the loss least.

    Args:
        task: needs data; its limits are the ones that candidates meet.
        search: the settings.
        start: compensations to begin with, beside none at all.

    Raises:
        SearchError: the network's own loss, or that of every candidate, is not finite.
    """
    more = {"start": [beta.tolist() for beta in start]} if start else {}
    records = task.open_records(**plain_fields(search, "search"), **more)
    if records.scores is not None:
        # A resumed search ranks by the very scores it began with: some metrics round differently every time.
        task = task.but(scores=records.scores)
    evaluator = task.evaluator
    full_loss = evaluator.full_loss()
    if not math.isfinite(full_loss):
        raise SearchError("the loss of the network itself is not finite: look at the data and the loss function")
    curves = records.curves if records.curves is not None else _curves(task, search)
    records.start(task.scores, full_loss, curves)
    space = Space.of(task.scores, search.form)
    guides = [LossGuide(task.ranking, task.limits, space, task.scores, own) for own in curves]
    start = [*(beta for guide in guides[:-1] for beta in guide.starts()[1:]), *start]  # the first is uniform pruning
    sampler = make_sampler(space, search, task.seed, start, guides[-1] if guides else None)
    found = run_search(
        sampler,
        lambda beta: compensate(task, beta),
        evaluator,
        task.graph.cost,
        full_loss,
        records,
        progress=task.progress,
        precise=_precise(task),
        signed=task.evaluation.prepares,
    )
    return Learned(found, task)


def _curves(task: Task, search: Search) -> list[list[FloatArray]]:
    """What is known of losing units before anything is judged: least of it first."""
    if task.quick is None:
        return []
    return [task.shares, task.moved] if measures(task, search) else [task.shares]


def measures(task: Task, search: Search) -> bool:
    """Whether every group is cut alone before a search, to see how much outputs move."""
    return task.quick is not None and search.total >= _FOR_GROUPS * len(task.graph.groups)


def compensate(task: Task, beta: FloatArray) -> Kept:
    """The units that stay when the ranking is compensated by `beta` (shifts, or scales and shifts)."""
    alpha, shift = (beta[0], beta[1]) if beta.ndim == 2 else (None, beta)
    return task.ranking.select(task.limits, beta=shift, alpha=alpha)


def _precise(task: Task) -> Callable[[Kept], float] | None:
    """Judges finalists in float32, where candidates are ranked in less; made when it is first needed."""
    rough = task.evaluator
    if rough.precision == "fp32":
        return None
    made: list[tuple[Evaluator, float]] = []

    def difference(kept: Kept) -> float:
        if not made:
            exact = rough.exactly()
            made.append((exact, exact.full_loss()))
        evaluator, full_loss = made[0]
        return objective(full_loss, evaluator.loss(kept), task.evaluation.prepares)

    return difference
