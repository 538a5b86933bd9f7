"""A search with up to 256 workers, simulated: the loop's own rules, one event after another."""

from __future__ import annotations

import heapq
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lcprune import Evaluation, Search

RESULTS = Path(__file__).parent / "results"
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Assumptions:
    """What the simulation takes for granted; seconds and bytes.

    Attributes:
        seconds_per_candidate: to judge one on one GPU.
        source: where that comes from.
        variation: standard deviation of the time of a candidate, as a share of it.
        lead_seconds: that the leading process spends per candidate, one after another.
        way_seconds: between a candidate's being ready and a worker's beginning with it, and back.
        start_seconds: until a worker's process has imported everything.
        case_bytes: network and images, sent to each machine once.
        bandwidth: bytes per second between two machines; each machine that has them passes them on.
        gpus_per_machine: workers that share one copy.
    """

    seconds_per_candidate: float
    source: str
    variation: float
    lead_seconds: float
    way_seconds: float
    start_seconds: float
    case_bytes: float
    bandwidth: float
    gpus_per_machine: int


def candidate_seconds() -> tuple[float, str]:
    """Judging ResNet-50 on one GPU, from the committed record, for the images and the precision of a default search."""
    record = json.loads((RESULTS / "search-cuda.json").read_text(encoding="utf-8"))
    usual = Evaluation()
    rows = [row for row in record["rows"] if row["network"].endswith("resnet50") and row["variant"] == "zero"]
    row = next(row for row in rows if row["precision"] == usual.precision)
    each = row["evaluating_s"] / row["evaluations"]
    return each * usual.images / row["images"], (
        f"{1e3 * each:.1f} ms for {row['images']} images on one {record['machine']} ({row['precision']}, "
        f"`benchmarks/results/search-cuda.json`), times {usual.images / row['images']:g}"
    )


def simulate(workers: int, search: Search, given: Assumptions, asynchronous: bool, seed: int = 0) -> dict[str, float]:
    """Seconds of a search with so many workers: the loop's rules, one event after another."""
    rng = np.random.default_rng(seed)
    machines = math.ceil(workers / given.gpus_per_machine)
    hops = math.ceil(math.log2(machines + 1))  # whoever has the case passes it on
    start = given.start_seconds + hops * given.case_bytes / given.bandwidth
    free = [start] * workers
    heapq.heapify(free)
    lead = start  # when the leading process is free
    waiting: list[tuple[float, int]] = []  # when each candidate asked for comes back
    asked = told = 0
    while told < search.total:
        if asynchronous or not waiting:
            while len(waiting) < workers and asked < search.total:
                if asked >= search.pool > told:
                    break
                lead += given.lead_seconds
                begin = max(lead, heapq.heappop(free)) + given.way_seconds
                spent = given.seconds_per_candidate * max(0.1, 1.0 + given.variation * rng.standard_normal())
                heapq.heappush(free, begin + spent)
                waiting.append((begin + spent, asked))
                asked += 1
        back = min(waiting) if asynchronous else waiting[0]  # the first to come, or the first that was asked for
        waiting.remove(back)
        lead = max(lead, back[0])
        told += 1
    return {"seconds": lead, "start": start}


def curve(given: Assumptions, search: Search) -> list[dict[str, Any]]:
    """Simulated seconds and speed-ups for all numbers of workers."""
    rows: list[dict[str, Any]] = []
    for workers in WORKERS:
        row: dict[str, Any] = {"workers": workers}
        for name, asynchronous, chosen in (
            ("together", False, search),
            ("asynchronous", True, search),
            ("wide", False, wide(search, workers)),
            ("long", False, replace(search, iterations=10 * search.total - search.pool)),
        ):
            row[name] = simulate(workers, chosen, given, asynchronous)["seconds"]
        rows.append(row)
    for row in rows:
        for name in ("together", "asynchronous", "wide", "long"):
            row[f"{name}_speed_up"] = rows[0]["long" if name == "long" else "together"] / row[name]
    return rows


def wide(search: Search, workers: int) -> Search:
    """As many candidates in all, with a first pool that gives every worker something to do."""
    pool = min(search.total, max(search.pool, workers))
    return replace(search, pool=pool, iterations=search.total - pool)
