"""The search loop: ask, select, judge, tell; recorded while it runs and replayed to go on.

`search.together` candidates are asked for at once. They are told in the order asked, whoever is judged first, so that
the number of workers changes nothing but the time; an asynchronous search tells them as they come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from lcprune.cost import Cost
from lcprune.errors import SearchError
from lcprune.evaluate import Evaluator
from lcprune.progress import Progress
from lcprune.search.config import Search
from lcprune.search.records import History, Record, SearchRecords, best_of
from lcprune.search.samplers import Sampler
from lcprune.search.space import FloatArray
from lcprune.select import Kept


class Judged(NamedTuple):
    """What was found out about a candidate."""

    number: int
    loss: float
    cached: bool  # whether an equal selection had been judged before


@runtime_checkable
class Judges(Protocol):
    """Evaluators that work at the same time: candidates are submitted, and collected by number, or any if None.

    They `remember` losses from an earlier run, and `forget` what was submitted and not collected.
    """

    def submit(self, number: int, kept: Kept) -> None: ...
    def collect(self, number: int | None) -> Judged: ...
    def remember(self, kept: Kept, loss: float) -> None: ...
    def forget(self) -> None: ...


class _InTurn:
    """One judge for all: a candidate is judged when its loss is wanted."""

    def __init__(self, judge: Evaluator) -> None:
        self.judge, self.remember = judge, judge.remember
        self.waiting: dict[int, Kept] = {}

    def submit(self, number: int, kept: Kept) -> None:
        self.waiting[number] = kept

    def collect(self, number: int | None) -> Judged:
        number = next(iter(self.waiting)) if number is None else number
        kept = self.waiting.pop(number)
        cached = self.judge.knows(kept)
        return Judged(number, self.judge.loss(kept), cached)

    def forget(self) -> None:
        self.waiting.clear()


class _Candidate(NamedTuple):
    beta: FloatArray
    kept: Kept


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: the best compensation, and how it came about."""

    beta: FloatArray
    kept: Kept  # the selection it makes
    difference: float  # its objective
    naive: float  # the objective of naive pruning
    history: list[Record]
    planning: float  # seconds spent proposing and selecting, without judging


def objective(full_loss: float, loss: float, signed: bool = False) -> float:
    """|L(full) - L(pruned)| of equation (9), or of candidates that were tuned how much worse they are (`signed`)."""
    difference = loss - full_loss
    if not math.isfinite(difference):
        return math.inf
    return difference if signed else abs(difference)


def run_search(
    sampler: Sampler,
    select: Callable[[FloatArray], Kept],
    judge: Evaluator | Judges,
    cost: Cost,
    full_loss: float,
    records: SearchRecords,
    progress: bool = False,
    precise: Callable[[Kept], float] | None = None,
    signed: bool = False,
    title: str = "search",
) -> Found:
    """Judge as many candidates as the sampler's `search` says, or fewer if its patience runs out.

    Args:
        records: what to replay first, and where to write until the end.
        precise: judges the finalists again, where `judge` only ranks well enough; kept units -> difference.

    Raises:
        SearchError: the replayed records were not made by this search, or no candidate has a finite loss.
    """
    search = sampler.search
    judges = judge if isinstance(judge, Judges) else _InTurn(judge)
    began = time.perf_counter() - max((record.seconds for record in records.replayed), default=0.0)
    judged_before = {record.iteration for record in records.replayed}
    waiting: dict[int, _Candidate] = {}  # asked for and not told, in the order asked
    told: list[Record] = []
    naive, best_at, planning = math.inf, 0, 0.0

    def patient() -> bool:
        # Of what a search begins with, as the first pool of evolution, nothing is left out.
        return search.patience is None or len(told) - 1 - max(best_at, sampler.first - 1) < search.patience

    def ask() -> None:
        while len(waiting) < (search.together or 1) and sampler.asked < search.total and sampler.room:
            number, beta = sampler.asked, sampler.ask()
            waiting[number] = _Candidate(beta, select(beta))
            if number not in judged_before:
                judges.submit(number, waiting[number].kept)

    def judged() -> Record:
        number, loss, cached = judges.collect(None if search.asynchronous else next(iter(waiting)))
        difference = objective(full_loss, loss, signed)
        beta, kept = waiting[number]
        counts = np.array([len(units) for units in kept])
        return Record(
            iteration=number,
            loss=loss,
            difference=difference,
            beta=beta.tolist(),
            counts=counts.tolist(),
            macs=float(cost.macs(counts)),
            params=float(cost.params(counts)),
            best=min(difference, sampler.best_loss),
            cached=cached and bool(told),  # what came before the first one may have looked at it
            seconds=round(time.perf_counter() - began, 6),
        )

    with Progress(title, total=search.total, enabled=progress) as bar:
        try:
            while patient():
                started = time.perf_counter()
                if search.asynchronous or not waiting:
                    ask()
                planning += time.perf_counter() - started
                if not waiting:
                    break
                if len(told) < len(records.replayed):
                    record = records.replayed[len(told)]
                    judges.remember(_same(record, waiting, search).kept, record.loss)
                else:
                    record = judged()
                    records.append(record)
                if record.iteration == 0:
                    naive = record.difference
                if record.difference < sampler.best_loss:
                    best_at = len(told)
                started = time.perf_counter()
                sampler.tell(waiting.pop(record.iteration).beta, record.difference)
                planning += time.perf_counter() - started
                told.append(record)
                shown: dict[str, Any] = {"best": f"{record.best:.4g}"}
                if sampler.start:  # AMC does not begin with naive pruning
                    shown["naive"] = f"{naive:.4g}"
                bar.advance(**shown)
        finally:
            judges.forget()
            records.close()
    return _found(History(told), select, search, planning, precise)


def _same(record: Record, waiting: Mapping[int, _Candidate], search: Search) -> _Candidate:
    """The candidate that a record to be replayed is of; refused where another one was asked for."""
    candidate, first = waiting.get(record.iteration), next(iter(waiting))
    in_turn = search.asynchronous or record.iteration == first
    if candidate is None or not in_turn or not np.array_equal(np.array(record.beta), candidate.beta):
        raise SearchError(
            f"record {record.iteration} was made by another search: candidate {first} is another one now; name "
            "another folder to start over"
        )
    return candidate


def _found(
    history: list[Record],
    select: Callable[[FloatArray], Kept],
    search: Search,
    planning: float,
    precise: Callable[[Kept], float] | None,
) -> Found:
    [best] = best_of(history, 1)
    if not math.isfinite(best.difference):
        raise SearchError(
            f"none of {len(history)} candidates has a finite loss: look at the data, the loss function and the limit"
        )
    difference, naive = best.difference, history[0].difference
    if precise is not None:
        # Naive pruning is always among them, so that rounding cannot make the search worse than it.
        finalists = [history[0], *best_of(history, search.finalists)]
        again = [(precise(select(np.array(record.beta))), record.iteration, record) for record in finalists]
        difference, _, best = min(again, key=lambda one: one[:2])
        naive = again[0][0]
    beta = np.array(best.beta)
    return Found(beta, select(beta), difference, naive, history, planning)
