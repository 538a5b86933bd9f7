"""Ways to choose what goes, by name: `method=` of `prune`, listed by `lcprune.methods()`.

@lcprune.methods.register("mine", needs_data=False)
def mine(task):
    return Choice(task.ranking.select(task.limits))
"""

from __future__ import annotations

import difflib
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from lcprune.errors import ConfigError, SearchError
from lcprune.evaluate import Evaluator
from lcprune.search import Found, Space, make_sampler, objective, run_search
from lcprune.search.space import FloatArray
from lcprune.select import Limits
from lcprune.task import Choice, Kept, Task

logger = logging.getLogger("lcprune")

# Of what the network is better than guessing: with less than this, a cut network is no better than guessing.
_LEFT = 0.1

Function = TypeVar("Function", bound=Callable[..., Choice])


@dataclass(frozen=True)
class Method:
    """A way to choose units.

    Attributes:
        name: what users call it.
        function: `Task -> Choice`.
        needs_data: whether it judges networks by their loss.
        summary: the first line of its docstring.
        options: dataclass of its own settings, which a task then holds; None if it has none.
    """

    name: str
    function: Callable[[Task], Choice]
    needs_data: bool
    summary: str
    options: type[Any] | None = None

    def read_options(self, given: Mapping[str, Any] | None) -> Any:
        """The method's own settings: its defaults, changed as the user says.

        Raises:
            ConfigError: there is no such setting.
        """
        known = [item.name for item in fields(self.options)] if self.options else []
        strange = sorted(set(given or {}) - set(known))
        if strange:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ConfigError(f"method {self.name!r} {has}, not {', '.join(map(repr, strange))}")
        return self.options(**(given or {})) if self.options else None


_METHODS: dict[str, Method] = {}


def register(name: str, needs_data: bool = False, options: type[Any] | None = None) -> Callable[[Function], Function]:
    """Decorator that makes a function `Task -> Choice` available as `method=name`.

    Args:
        name: what users call it.
        needs_data: whether it cannot do without.
        options: dataclass of settings of its own, with defaults; `prune(options=...)` changes them.

    Raises:
        ConfigError: the name is taken.
    """

    def add(function: Function) -> Function:
        if name in _METHODS:
            raise ConfigError(f"method {name!r} exists already; choose another name")
        summary = (function.__doc__ or "").strip().split("\n")[0]
        _METHODS[name] = Method(name, function, needs_data, summary, options)
        return function

    return add


def names() -> tuple[str, ...]:
    """Every method that can be named, sorted."""
    return tuple(sorted(_METHODS))


def get(name: str) -> Method:
    """The method of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in _METHODS:
        near = difflib.get_close_matches(str(name), names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no method {name!r}.{hint} There are {', '.join(names())}")
    return _METHODS[name]


@register("uniform")
def uniform(task: Task) -> Choice:
    """The same share of every group stays."""
    return Choice(task.ranking.uniform(task.limits))


@register("naive")
def naive(task: Task) -> Choice:
    """One global ranking by the metric alone: the lowest go until the limit holds."""
    return Choice(task.ranking.select(task.limits))


@register("schedule")
def schedule(task: Task) -> Choice:
    """The shares that the user gives for each group; limits are checked, if there are any."""
    if not task.schedule:
        raise ConfigError('method="schedule" needs schedule=, e.g. schedule={"layer1.*": 0.5}')
    kept = task.ranking.schedule(task.schedule, task.limits if task.limits else None)
    return Choice(kept, meta={"schedule": dict(task.schedule)})


@register("lcp", needs_data=True)
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


class _Methods(ModuleType):
    """The module itself can be called: `lcprune.methods()` lists what there is."""

    def __call__(self) -> tuple[str, ...]:
        return names()


sys.modules[__name__].__class__ = _Methods

__all__ = ["Choice", "Method", "Task", "get", "names", "register"]
