"""Gathering the records of one or several runs, ready to be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lcprune.plan import Plan
from lcprune.runs import PLAN, Row, RunFolder
from lcprune.score import Score

_AVERAGED = (
    *("macs", "params", "macs_share", "params_share", "loss", "loss_before", "loss_repaired"),
    *("latency_limit_ms", "latency_predicted_ms", "latency_original_ms", "latency_ms"),
)
KINDS = ("results", "schedule", "search", "metric", "latency", "training")


@dataclass(frozen=True)
class Records:
    """What was measured, one list of rows per kind; with several runs every row says which (`run`).

    Attributes:
        title: what the page is about.
        runs: the runs, in the order given.
        results: one row per network: network, method, limit, seed, macs, params, accuracy_before (as cut),
            accuracy_repaired, accuracy; or another score by its name, which `score` then describes.
        schedule: one row per network and group: group, position, size, kept.
        search: one row per candidate: network, iteration, difference, best, naive.
        metric: one row per unit: metric, group, position, score, difference.
        latency: one row per network and batch size: ms (per image), low, high.
        training: one row per epoch: network, epoch, loss, accuracy.
    """

    title: str
    runs: tuple[RunFolder, ...] = ()
    results: list[Row] = field(default_factory=list)
    schedule: list[Row] = field(default_factory=list)
    search: list[Row] = field(default_factory=list)
    metric: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    training: list[Row] = field(default_factory=list)

    @property
    def score(self) -> Score:
        """By what the networks were compared."""
        return Score.in_rows(self.results)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not any(getattr(self, kind) for kind in KINDS)


def collect(runs: Sequence[RunFolder], title: str | None = None) -> Records:
    """Read the records of `runs`."""
    rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    names = _distinct_names(runs)
    for run, name in zip(runs, names, strict=True):
        for kind, own in _rows(run, name).items():
            for row in own:
                if len(runs) > 1:
                    row = {**row, "run": name}
                    if "network" in row:
                        row["network"] = f"{name}: {row['network']}"
                rows[kind].append(row)
    return Records(title or ", ".join(names), tuple(runs), **rows)


def _rows(run: RunFolder, name: str) -> dict[str, list[Row]]:
    """The rows of a run; of a folder with nothing but a network, what its plan says."""
    found = {kind: run.records(kind) for kind in KINDS}
    if any(found.values()) or not run.file(PLAN).is_file():
        return found
    plan = Plan.load(run.file(PLAN))
    costs = (("original", plan.original_macs, plan.original_params), (name, plan.macs, plan.params))
    method, limit = str(plan.meta.get("method", "pruned")), plan.macs / plan.original_macs
    for network, macs, params in costs:
        shares = {"macs_share": macs / plan.original_macs, "params_share": params / plan.original_params}
        kind = {"method": method, "limit": limit} if network == name else {"method": "original", "limit": None}
        found["results"].append({"network": network, "seed": 0, **kind, "macs": macs, "params": params, **shares})
    for position, (group, size) in enumerate(plan.sizes.items()):
        row = {"network": name, "method": method, "limit": limit, "group": group, "position": position}
        found["schedule"].append({**row, "size": size, "kept": len(plan.kept[group])})
    return found


def summarise(results: Sequence[Row]) -> list[Row]:
    """Average the rows that differ only by seed.

    Returns:
        One row per (run, method, limit), with the means, `accuracy_std`, `accuracy_before_std`,
        `accuracy_repaired_std` (sample standard deviations; None for a single trial; of another score with its name),
        and `trials`.
    """
    score = Score.in_rows(results).name
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in results:
        key = (row.get("run"), row.get("method"), row.get("resource"), row.get("limit"))
        kinds.setdefault(key, []).append(row)
    summary = []
    for rows in kinds.values():
        merged = dict(rows[0])
        judged = [score + suffix for suffix in ("", "_before", "_repaired")]
        for name in (*(name for name in _AVERAGED if name in merged), *judged):
            values = [row[name] for row in rows if row.get(name) is not None]
            merged[name] = _mean(values)
            if name in judged:
                merged[f"{name}_std"] = _deviation(values)
        merged["trials"] = len(rows)
        summary.append(merged)
    return summary


def is_tuned(row: Row, score: Score) -> bool:
    """Whether a network, summarised, was trained after its cut: the score of others is that as cut, or repaired."""
    before = row[f"{score.name}_repaired"]
    if before is None:
        before = row[f"{score.name}_before"]
    return before is not None and row[score.name] is not None and before != row[score.name]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _distinct_names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names; where two are the same, with as much of the path as tells them apart."""
    paths = [run.path.resolve() for run in runs]
    names = []
    for path in paths:
        depth = 1
        while depth < len(path.parts) and sum(p.parts[-depth:] == path.parts[-depth:] for p in paths) > 1:
            depth += 1
        names.append("/".join(path.parts[-depth:]))
    return names
