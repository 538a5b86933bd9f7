"""Uniform, naive, scheduled and layer-compensated pruning: what is ranked, learned and kept."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lcprune import baselines  # noqa: F401  (they register themselves: whoever gets `methods` from here gets all)
from lcprune.errors import ConfigError, SearchError
from lcprune.evaluate import Evaluator
from lcprune.method import Method, methods
from lcprune.search import Found, Space, make_sampler, objective, run_search
from lcprune.search.space import FloatArray
from lcprune.select import Kept, Limits
from lcprune.task import Choice, Task

__all__ = ["compensate", "learn", "methods", "reselect"]

logger = logging.getLogger("lcprune")

# Of what the network is better than guessing: with less than this, a cut network is no better than guessing.
_LEFT = 0.1


@methods.register("uniform")
def uniform(task: Task) -> Choice:
    """The same share of every group stays."""
    return Choice(task.ranking.uniform(task.limits))


@methods.register("naive")
def naive(task: Task) -> Choice:
    """One global ranking by the metric alone: the lowest go until the limit holds."""
    return Choice(task.ranking.select(task.limits))


@methods.register("schedule")
def schedule(task: Task) -> Choice:
    """The shares that the user gives for each group; limits are checked, if there are any."""
    if not task.schedule:
        raise ConfigError('method="schedule" needs schedule=, e.g. schedule={"layer1.*": 0.5}')
    kept = task.ranking.schedule(task.schedule, task.limits if task.limits else None)
    return Choice(kept, meta={"schedule": dict(task.schedule)})


@methods.register("lcp", needs_data=True)
def lcp(task: Task) -> Choice:
    """Layer-compensated pruning: the global ranking by metric + beta, beta learned by search."""
    started = time.perf_counter()
    found = learn(task)
    work = task.evaluator.work
    seconds = {
        "total": time.perf_counter() - started,
        "planning": found.planning,
        "preparing": work.preparing,
        "evaluating": work.evaluating,
    }
    meta = {
        "beta": found.beta.tolist(),
        "form": task.search.form,
        "difference": found.difference,
        "naive_difference": found.naive,
        "recalibrate": task.search.recalibrate,
        "candidates": len(found.history),
        "evaluations": work.evaluations,
    }
    return Choice(found.kept, found.history, meta, seconds)


def learn(task: Task, start: Sequence[FloatArray] = ()) -> Found:
    """Search for the compensation whose selection moves the loss least.

    Args:
        task: needs data; its limits are the ones that candidates meet. `search.recalibrate="auto"` is decided in it.
        start: compensations to begin with, beside none at all.

    Raises:
        SearchError: the network's own loss, or that of every candidate, is not finite.
    """
    if task.search.recalibrate == "auto":
        _decide(task)
    records = task.open_records(**({"start": [beta.tolist() for beta in start]} if start else {}))
    if records.scores is not None:
        # A resumed search ranks by the very scores it began with: some metrics round differently every time.
        task.scores = records.scores
    evaluator = task.evaluator
    full_loss = evaluator.full_loss()
    if not math.isfinite(full_loss):
        raise SearchError("the loss of the network itself is not finite: look at the data and the loss function")
    records.start(task.scores, full_loss)
    sampler = make_sampler(Space.of(task.scores, task.search.form), task.search, task.seed, start)
    try:
        return run_search(
            sampler,
            lambda beta: compensate(task, beta),
            evaluator,
            task.graph.cost,
            task.search,
            full_loss,
            records,
            progress=task.progress,
            precise=_precise(task),
        )
    finally:
        records.close()


def _decide(task: Task) -> None:
    """Whether candidates get new batch-norm statistics: where naive pruning is no better than guessing.

    There the loss right after the cut says how wrong the statistics are, not what tuning can make of the network.
    """
    anew, why = False, ""
    begun = task.recorded("search.recalibrate")  # a search goes on as it began
    if begun is not None:
        anew, why = bool(begun), ", as this search began"
    elif task.guess is not None:
        left = task.guess - task.evaluator.loss(task.ranking.select(task.limits))
        anew = left < _LEFT * (task.guess - task.evaluator.full_loss())
        why = f": naive pruning is {'no ' if anew else ''}better than guessing here"
    task.search = replace(task.search, recalibrate=anew)
    logger.info("candidates %s%s", "get new batch-norm statistics" if anew else "are judged as they are cut", why)
    if anew:
        task.__dict__.pop("evaluator", None)  # it judges networks as they are cut


def compensate(task: Task, beta: FloatArray) -> Kept:
    """The units that stay when the ranking is compensated by `beta` (shifts, or scales and shifts)."""
    alpha, shift = (beta[0], beta[1]) if beta.ndim == 2 else (None, beta)
    return task.ranking.select(task.limits, beta=shift, alpha=alpha)


def reselect(task: Task, choice: Choice, method: Method, limits: Limits) -> Kept | None:
    """What a method keeps under tighter limits, without another search; None if it cannot say.

    Args:
        task: what the method was given.
        choice: what it chose.
        method: the method.
        limits: the tighter ones.
    """
    tighter = replace(task, limits=limits)
    if choice.model is None:
        tighter.scores = task.scores  # `replace` forgets them
    beta = choice.meta.get("beta")
    if beta is not None:
        return compensate(tighter, np.asarray(beta))
    return method.function(tighter).kept if method.name in ("naive", "uniform") else None


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
        return objective(full_loss, evaluator.loss(kept))

    return difference
