"""Learning compensations for several limits: in one shared search, at the tightest limit, or at each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcprune import choosing
from lcprune.choosing import LcP, Learned
from lcprune.method import Method
from lcprune.search import Record, Search, best_of
from lcprune.select import Kept, Limits
from lcprune.task import Task

LEARN = ("sweep", "tightest", "each")


@dataclass(frozen=True, eq=False)
class Chosen:
    """What each method keeps at each limit."""

    kept: Mapping[str, list[Kept]]  # method -> kept units, in the order of the limits
    histories: Mapping[int, list[Record]]  # position of a limit that was searched at -> records of the search
    learned: list[dict[str, Any]]  # for each limit how "lcp" was learned, for the plan's `meta`; empty without it
    tasks: Mapping[str, Task]  # as given, ranked by the scores that a resumed search began with


def choose(
    tasks: Mapping[str, Task],
    given: list[float],
    limits: list[Limits],
    learn: str,
    methods: Mapping[str, Method],
    folder: Path | None,
) -> Chosen:
    """What each method keeps at each limit; searches are recorded in the folder, in files named by `given` limits."""
    lcp, tasks = methods.get("lcp"), dict(tasks)
    founds: dict[int, Learned] = {}
    kept: dict[str, list[Kept]] = {}
    learned: list[dict[str, Any]] = []
    if isinstance(lcp, LcP):
        task = tasks["lcp"]
        _ = task.scores, task.evaluator  # shared by all limits: `but` hands on what is there
        search = choosing.counted(task, lcp.search, len(limits) if learn == "sweep" else 1)
        order = sorted(range(len(limits)), key=lambda index: -_looseness(task, limits[index]))
        files = _files(given)
        if learn == "tightest":
            order, files = order[-1:], ["search.jsonl"] * len(limits)
        elif learn == "sweep":
            search = _share(search, len(limits))
        if choosing.measures(task, search):
            _ = task.moved  # likewise
        start: list[NDArray[np.float64]] = []
        for turn, index in enumerate(order):
            # Parts of one search must not draw the same candidates again; whole searches are those of `prune`.
            seed = task.seed
            if learn == "sweep" and turn:
                seed = int(np.random.SeedSequence((seed, turn)).generate_state(1)[0])
            records = None if folder is None else folder / files[index]
            part = task.but(limits=limits[index], records=records, seed=seed)
            found = founds[index] = choosing.learn(part, search, start)
            task = task.but(scores=found.task.scores)  # a resumed search ranks by the scores it began with
            if learn == "sweep":
                # The best, but for naive pruning, with which every search begins.
                start = [np.array(one.beta) for one in best_of(found.found.history[1:], search.pool // 2)]
        learned = [founds.get(index, found).meta for index in range(len(limits))]
        if learn == "tightest":
            kept["lcp"] = [choosing.compensate(task.but(limits=limit), found.found.beta) for limit in limits]
        else:
            kept["lcp"] = [founds[index].found.kept for index in range(len(limits))]
        # A resumed search brought the scores that it began with: for all who rank by the same metric.
        tasks = {name: task if own.metric == task.metric else own for name, own in tasks.items()}
    for name, method in methods.items():
        if name != "lcp":
            kept[name] = [method.choose(tasks[name].but(limits=limit)).kept for limit in limits]
    histories = {index: founds[index].found.history for index in sorted(founds)}
    return Chosen(kept, histories, learned, tasks)


def _files(given: Sequence[float]) -> list[str]:
    """Names for the records of each limit; limits that read alike (0.5 twice, with two other limits) are numbered."""
    names = [f"search-{limit:g}" for limit in given]
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [f"{name}{f'-{count}' if count > 1 else ''}.jsonl" for name, count in zip(names, counts, strict=True)]


def _share(search: Search, limits: int) -> Search:
    """The settings of one limit's part of a search; all of it where there is one limit."""
    if limits == 1:
        return search
    total = max(2, search.total // limits)
    pool = min(search.pool, max(2, total // 4))
    sample = max(1, round(search.sample * pool / search.pool))
    return replace(search, pool=pool, iterations=total - pool, sample=sample)


def _looseness(task: Task, limits: Limits) -> float:
    return min(bound.value / bound.full for bound in limits.bounds(task.graph.cost))
