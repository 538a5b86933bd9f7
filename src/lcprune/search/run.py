"""The search loop: ask, select, judge, tell; recorded while it runs and replayed to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lcprune.cost import Cost
from lcprune.errors import SearchError
from lcprune.progress import Progress
from lcprune.search.config import Search
from lcprune.search.records import Record, Records
from lcprune.search.samplers import Sampler
from lcprune.search.space import FloatArray

Kept = list[NDArray[np.int64]]


class Judge(Protocol):
    """What the loop needs of an evaluator."""

    def loss(self, kept: Kept) -> float: ...

    def knows(self, kept: Kept) -> bool: ...

    def remember(self, kept: Kept, loss: float) -> None: ...


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
        full_loss: of the network.
        loss: of the candidate.
        signed: how much worse instead of how different: for candidates that were tuned before being judged.
    """
    difference = loss - full_loss
    if not math.isfinite(difference):
        return math.inf
    return difference if signed else abs(difference)


def run_search(
    sampler: Sampler,
    select: Callable[[FloatArray], Kept],
    judge: Judge,
    cost: Cost,
    search: Search,
    full_loss: float,
    records: Records,
    progress: bool = False,
    precise: Callable[[Kept], float] | None = None,
) -> Found:
    """Judge `search.total` candidates, or fewer if `search.patience` runs out.

    Args:
        sampler: proposes candidates; naive pruning first.
        select: compensation -> kept units of each group.
        judge: kept units -> loss.
        cost: of kept counts, for the records.
        search: the settings.
        full_loss: of the network before pruning.
        records: where to write, and what to replay first.
        progress: show a bar.
        precise: judges the finalists again, where `judge` only ranks well enough; kept units -> difference.

    Raises:
        SearchError: the replayed records were not made by this search, or no candidate has a finite loss.
    """
    history: list[Record] = []
    planning = 0.0
    best_at = 0
    began = time.perf_counter() - (records.replayed[-1].seconds if records.replayed else 0.0)
    with Progress("search", total=search.total, enabled=progress) as bar:
        for iteration in range(search.total):
            started = time.perf_counter()
            beta = sampler.ask()
            kept = select(beta)
            planning += time.perf_counter() - started
            old = records.replayed[iteration] if iteration < len(records.replayed) else None
            if old is not None:
                _check_replay(old, iteration, beta)
                judge.remember(kept, old.loss)
                record = old
            else:
                cached = judge.knows(kept)
                loss = judge.loss(kept)
                difference = objective(full_loss, loss, search.prepares)
                counts = np.array([len(units) for units in kept])
                record = Record(
                    iteration=iteration,
                    loss=loss,
                    difference=difference,
                    beta=beta.tolist(),
                    counts=counts.tolist(),
                    macs=float(cost.macs(counts)),
                    params=float(cost.params(counts)),
                    best=min(difference, sampler.best_loss),
                    cached=cached,
                    seconds=round(time.perf_counter() - began, 6),
                )
                records.append(record)
            if record.difference < sampler.best_loss:
                best_at = iteration
            started = time.perf_counter()
            sampler.tell(beta, record.difference)
            planning += time.perf_counter() - started
            history.append(record)
            bar.advance(best=f"{record.best:.4g}", naive=f"{history[0].difference:.4g}")
            if search.patience is not None and iteration - max(best_at, search.pool - 1) >= search.patience:
                break
    return _found(history, select, search, planning, precise)


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


def _check_replay(old: Record, iteration: int, beta: FloatArray) -> None:
    if old.iteration != iteration or not np.array_equal(np.array(old.beta), beta):
        raise SearchError(
            f"record {old.iteration} was made by another search: candidate {iteration} has another beta now; "
            "name another folder to start anew"
        )
