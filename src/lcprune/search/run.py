"""The search loop: ask, select, judge, tell; recorded while it runs and replayed to go on.

`search.together` candidates are asked for at once. They are told in the order asked, whoever is judged first, so that
the number of workers changes nothing but the time; an asynchronous search tells them as they come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lcprune.cost import Cost
from lcprune.errors import SearchError
from lcprune.evaluate import Evaluator
from lcprune.progress import Progress
from lcprune.search.config import Search
from lcprune.search.judges import InTurn, Judges
from lcprune.search.records import History, Record, Records
from lcprune.search.samplers import Sampler
from lcprune.search.space import FloatArray
from lcprune.select import Kept


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Attributes:
        beta: the best compensation.
        kept: the selection it makes.
        difference: its objective.
        naive: the objective of naive pruning.
        history: one record per candidate.
        planning: seconds spent proposing and selecting, without judging.
    """

    beta: FloatArray
    kept: Kept
    difference: float
    naive: float
    history: list[Record]
    planning: float


def objective(full_loss: float, loss: float, signed: bool = False) -> float:
    """|L(full) - L(pruned)| of equation (9); not finite counts as infinite.

    Args:
        signed: how much worse instead of how different: for candidates that were tuned before being judged.
    """
    difference = loss - full_loss
    if not math.isfinite(difference):
        return math.inf
    return difference if signed else abs(difference)


def run_search(
    sampler: Sampler,
    select: Callable[[FloatArray], Kept],
    judge: Evaluator | Judges,
    cost: Cost,
    search: Search,
    full_loss: float,
    records: Records,
    progress: bool = False,
    precise: Callable[[Kept], float] | None = None,
    signed: bool = False,
) -> Found:
    """Judge `search.total` candidates, or fewer if `search.patience` runs out.

    Args:
        sampler: proposes candidates; naive pruning first.
        select: compensation -> kept units of each group.
        judge: kept units -> loss; or several judges that work at the same time.
        full_loss: of the network before pruning.
        records: where to write, and what to replay first.
        precise: judges the finalists again, where `judge` only ranks well enough; kept units -> difference.
        signed: of `objective`.

    Raises:
        SearchError: the replayed records were not made by this search, or no candidate has a finite loss.
    """
    judges = judge if isinstance(judge, Judges) else InTurn(judge)
    loop = _Loop(sampler, select, judges, cost, search, full_loss, records, signed)
    with Progress("search", total=search.total, enabled=progress) as bar:
        try:
            while loop.ask():
                record = loop.tell()
                bar.advance(best=f"{record.best:.4g}", naive=f"{loop.naive:.4g}")
        finally:
            judges.forget()
    history = History(sorted(loop.told, key=lambda record: record.iteration))
    return _found(history, select, search, loop.planning, precise)


@dataclass(eq=False)
class _Candidate:
    iteration: int
    beta: FloatArray
    kept: Kept
    submitted: bool = False


@dataclass(eq=False)
class _Loop:
    """The state of one search: who was asked for, who was told."""

    sampler: Sampler
    select: Callable[[FloatArray], Kept]
    judges: Judges
    cost: Cost
    search: Search
    full_loss: float
    records: Records
    signed: bool
    waiting: dict[int, _Candidate] = field(default_factory=dict)  # asked for and not told, in the order asked
    told: list[Record] = field(default_factory=list)
    naive: float = math.inf
    best_at: int = 0
    planning: float = 0.0

    def __post_init__(self) -> None:
        self.began = time.perf_counter() - max((record.seconds for record in self.records.replayed), default=0.0)

    def ask(self) -> bool:
        """Ask for candidates where it is time to; False when the search is over."""
        search, together = self.search, self.search.together or 1
        # `pool - 1`: patience counts from the end of the first pool at the earliest.
        if search.patience is not None and len(self.told) - 1 - max(self.best_at, search.pool - 1) >= search.patience:
            return False
        started = time.perf_counter()
        if search.asynchronous or not self.waiting:
            while len(self.waiting) < together and self.sampler.asked < search.total and self.sampler.room:
                iteration, beta = self.sampler.asked, self.sampler.ask()
                self.waiting[iteration] = _Candidate(iteration, beta, self.select(beta))
        self.planning += time.perf_counter() - started
        return bool(self.waiting)

    def tell(self) -> Record:
        """Take the next candidate from the records or from the judges, and learn from it."""
        if len(self.told) < len(self.records.replayed):
            record = self._replay(self.records.replayed[len(self.told)])
        else:
            record = self._judge()
            self.records.append(record)
        candidate = self.waiting.pop(record.iteration)
        if record.difference < self.sampler.best_loss:
            self.best_at = len(self.told)
        if record.iteration == 0:
            self.naive = record.difference
        started = time.perf_counter()
        self.sampler.tell(candidate.beta, record.difference)
        self.planning += time.perf_counter() - started
        self.told.append(record)
        return record

    def _replay(self, old: Record) -> Record:
        candidate = self.waiting.get(old.iteration)
        in_turn = self.search.asynchronous or old.iteration == next(iter(self.waiting))
        if candidate is None or not in_turn or not np.array_equal(np.array(old.beta), candidate.beta):
            raise SearchError(
                f"record {old.iteration} was made by another search: candidate {next(iter(self.waiting))} has another "
                "beta now; name another folder to start over"
            )
        self.judges.remember(candidate.kept, old.loss)
        return old

    def _judge(self) -> Record:
        for candidate in self.waiting.values():
            if not candidate.submitted:
                self.judges.submit(candidate.iteration, candidate.kept)
                candidate.submitted = True
        judged = self.judges.collect(None if self.search.asynchronous else next(iter(self.waiting)))
        candidate = self.waiting[judged.number]
        difference = objective(self.full_loss, judged.loss, self.signed)
        counts = np.array([len(units) for units in candidate.kept])
        return Record(
            iteration=candidate.iteration,
            loss=judged.loss,
            difference=difference,
            beta=candidate.beta.tolist(),
            counts=counts.tolist(),
            macs=float(self.cost.macs(counts)),
            params=float(self.cost.params(counts)),
            best=min(difference, self.sampler.best_loss),
            cached=judged.cached and bool(self.told),  # what came before the first one may have looked at it
            seconds=round(time.perf_counter() - self.began, 6),
        )


def _found(
    history: list[Record],
    select: Callable[[FloatArray], Kept],
    search: Search,
    planning: float,
    precise: Callable[[Kept], float] | None,
) -> Found:
    ranked = sorted(history, key=lambda record: record.difference)  # stable: of equal ones the earliest
    if not math.isfinite(ranked[0].difference):
        raise SearchError(
            f"none of {len(history)} candidates has a finite loss: look at the data, the loss function and the limit"
        )
    chosen, difference, naive = ranked[0], ranked[0].difference, history[0].difference
    if precise is not None:
        # Naive pruning is always among them, so that rounding cannot make the search worse than it.
        finalists = [
            (precise(select(np.array(record.beta))), record.iteration, record)
            for record in [history[0], *_distinct(ranked, search.finalists)]
        ]
        difference, _, chosen = min(finalists, key=lambda item: item[:2])
        naive = finalists[0][0]
    beta = np.array(chosen.beta)
    return Found(beta, select(beta), difference, naive, history, planning)


def _distinct(ranked: list[Record], most: int) -> list[Record]:
    seen: dict[tuple[int, ...], Record] = {}
    for record in ranked:
        seen.setdefault(tuple(record.counts), record)
        if len(seen) == most:
            break
    return list(seen.values())
