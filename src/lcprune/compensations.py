"""Learning compensations for several limits: in one shared search, at the tightest limit, or at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcprune import choosing
from lcprune.search import Found, Record, Search
from lcprune.select import Kept, Limits
from lcprune.task import Task

LEARN = ("sweep", "tightest", "each")


def choose(
    task: Task,
    given: list[float],
    limits: list[Limits],
    learn: str,
    compare: Sequence[str],
    folder: Path | None,
) -> tuple[dict[str, list[Kept]], dict[int, list[Record]], list[dict[str, Any]]]:
    """What each method keeps at each limit.

    Args:
        task: the network, its scores and losses; a resumed search puts the scores there that it began with.
        given: the limits as numbers, for names.
        limits: what the networks may cost.
        learn: one of `LEARN`.
        compare: "lcp", "naive" and "uniform", or some of them.
        folder: where searches are recorded; None records them nowhere.

    Returns:
        Kept units by method, records by the position of the limit, and for each limit how "lcp" was learned, as in the
        plan's `meta`: the compensation and whether candidates got new statistics (nothing without "lcp").
    """
    histories: dict[int, list[Record]] = {}
    kept: dict[str, list[Kept]] = {}
    learned: list[dict[str, Any]] = []
    # Scores and losses are shared by all limits: `replace` would forget them.
    scores, evaluator = task.scores, task.evaluator
    guess = task.guess if "lcp" in compare else None

    def at(limit: Limits, records: str | None = None, search: Search = task.search, seed: int = task.seed) -> Task:
        path = None if folder is None or not records else folder / records
        one = replace(task, limits=limit, records=path, search=search, seed=seed)
        one.scores, one.evaluator, one.guess = scores, evaluator, guess
        return one

    if "lcp" in compare and learn in ("sweep", "each"):
        founds: dict[int, Found] = {}
        how: dict[int, dict[str, Any]] = {}
        start: list[NDArray[np.float64]] = []
        search = task.search if learn == "each" else _share(task.search, len(limits))
        files = _files(given)
        order = sorted(range(len(limits)), key=lambda index: -_tightness(task, limits[index]))
        for turn, index in enumerate(order):
            # Parts of one search must not draw the same candidates again; whole searches are those of `prune`.
            seed = _seed(task.seed, turn) if learn == "sweep" else task.seed
            learner = at(limits[index], files[index], search, seed)
            founds[index] = choosing.learn(learner, start)
            how[index] = _how(learner, founds[index])
            task.scores = scores = learner.scores  # a resumed search ranks by the scores it began with
            if learn == "sweep":
                start = _best(founds[index].history, search.pool // 2)
        histories = {index: founds[index].history for index in range(len(limits))}
        kept["lcp"] = [founds[index].kept for index in range(len(limits))]
        learned = [how[index] for index in range(len(limits))]
    elif "lcp" in compare:
        tightest = min(range(len(limits)), key=lambda index: _tightness(task, limits[index]))
        learner = at(limits[tightest], "search.jsonl")
        found = choosing.learn(learner)
        scores = learner.scores  # a resumed search ranks by the scores it began with
        task.scores = scores
        histories[tightest], learned = found.history, [_how(learner, found)] * len(limits)
        kept["lcp"] = [choosing.compensate(at(limit), found.beta) for limit in limits]
    # Last: a resumed search brought the scores that it began with.
    if "naive" in compare:
        kept["naive"] = [task.ranking.select(limit) for limit in limits]
    if "uniform" in compare:
        kept["uniform"] = [task.ranking.uniform(limit) for limit in limits]
    return kept, histories, learned


def _how(task: Task, found: Found) -> dict[str, Any]:
    return {"beta": found.beta.tolist(), "recalibrate": task.search.recalibrate}


def _files(given: Sequence[float]) -> list[str]:
    """Names for the records of each limit; limits that read alike (0.5 twice, with two other limits) are numbered."""
    names = [f"search-{limit:g}" for limit in given]
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [f"{name}{f'-{count}' if count > 1 else ''}.jsonl" for name, count in zip(names, counts, strict=True)]


def _seed(seed: int, turn: int) -> int:
    """The seed of one part of a shared search: the given one first, then others that follow from it."""
    return seed if turn == 0 else int(np.random.SeedSequence((seed, turn)).generate_state(1)[0])


def _share(search: Search, limits: int) -> Search:
    """The settings of one limit's part of a search; all of it where there is one limit."""
    if limits == 1:
        return search
    total = max(2, search.total // limits)
    pool = min(search.pool, max(2, total // 4))
    sample = max(1, round(search.sample * pool / search.pool))
    return replace(search, pool=pool, iterations=total - pool, sample=sample)


def _best(history: Sequence[Record], most: int) -> list[NDArray[np.float64]]:
    """Compensations of the best candidates, no two with the same counts; not that of naive pruning."""
    found: dict[tuple[int, ...], Record] = {}
    for record in sorted(history[1:], key=lambda record: record.difference):
        found.setdefault(tuple(record.counts), record)
    return [np.array(record.beta) for record in list(found.values())[:most]]


def _tightness(task: Task, limits: Limits) -> float:
    return min(bound.value / bound.full for bound in limits.bounds(task.graph.cost))
