"""How long it takes to plan one candidate, beside the plain one-filter-at-a-time loop.

    python benchmarks/planning.py            # writes benchmarks/results/planning.json

Both use the same scores, costs, betas and floors, and must choose the very same units.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch start their threads

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import lcprune
from lcprune import metrics, models
from lcprune.files import write_json
from lcprune.search import Space
from lcprune.select import Limits, Ranking

NETWORKS = {
    "resnet56": 2.0,
    "mobilenetv2": 10.0,
    "vgg16": None,
}  # name -> milliseconds that a candidate may take
LIMITS = (0.7, 0.5, 0.3, 0.2)
MIN_KEEP = 0.10
TOGETHER = 40  # candidates that a guided search plans at once


def plain_loop(
    scores: list[NDArray[np.float64]], cost: Any, limit: float, beta: NDArray[np.float64]
) -> list[NDArray[np.int64]]:
    """Sort everything, then remove one unit at a time until the limit holds."""
    order = sorted(
        (value + beta[group], group, rank, unit)
        for group, array in enumerate(scores)
        for rank, (value, unit) in enumerate(sorted(zip(array.tolist(), range(len(array)), strict=True)))
    )
    floors = np.maximum(1, np.ceil(MIN_KEEP * cost.sizes - 1e-9))
    counts, most = cost.sizes.copy(), limit * cost.macs(cost.sizes)
    alive = [np.ones(size, dtype=bool) for size in cost.sizes]
    for _, group, _, unit in order:
        if cost.macs(counts) <= most:
            break
        if counts[group] > floors[group]:
            alive[group][unit] = False
            counts[group] -= 1
    return [np.flatnonzero(mask) for mask in alive]


def measure(name: str, candidates: int, checked: int) -> dict[str, Any]:
    """Time both ways on one network."""
    torch.manual_seed(0)
    graph = lcprune.trace(models.build(name), models.example_input(name))
    scores = metrics.score(graph, "l2")
    started = time.perf_counter()
    ranking = Ranking(scores, graph.cost, MIN_KEEP)
    setup = time.perf_counter() - started
    generator, space = np.random.default_rng(0), Space.of(scores)
    rows = []
    for limit in LIMITS:
        limits = Limits(macs=limit)
        betas = [space.draw(generator) for _ in range(candidates)]
        ranking.select(limits, betas[0])
        ours, busy, plain = [], [], []
        for number, beta in enumerate(betas):
            started, working = time.perf_counter(), time.thread_time()
            kept = ranking.select(limits, beta)
            busy.append(1e3 * (time.thread_time() - working))
            ours.append(1e3 * (time.perf_counter() - started))
            if number < checked:
                started = time.perf_counter()
                expected = plain_loop(scores, graph.cost, limit, beta)
                plain.append(1e3 * (time.perf_counter() - started))
                assert all(map(np.array_equal, kept, expected)), "bisection and plain loop differ"
        started = time.perf_counter()
        together = ranking.counts(limits, np.stack(betas[:TOGETHER]))
        share = 1e3 * (time.perf_counter() - started) / TOGETHER
        one = [ranking.counts(limits, beta) for beta in betas[:TOGETHER]]
        assert np.array_equal(together, one), "several at once differ from one by one"
        median, slow = statistics.median(ours), statistics.median(plain)
        rows.append(
            {
                "macs": limit,
                "median_ms": round(median, 4),
                "p95_ms": round(float(np.percentile(ours, 95)), 4),
                "p95_processor_ms": round(float(np.percentile(busy, 95)), 4),  # without other programs' turns
                "together_ms": round(share, 4),
                "plain_loop_ms": round(slow, 2),
                "ratio": round(slow / median, 1),
            }
        )
    filters = {(m.weight, m.dim): np.unique(m.index).size for g in graph.groups for m in g.members if m.role == "out"}
    return {
        "network": name,
        "groups": len(graph.groups),
        "units": int(graph.cost.sizes.sum()),
        "filters": int(sum(filters.values())),
        "sort_once_ms": round(1e3 * setup, 3),
        "allowed_ms": NETWORKS[name],
        "limits": rows,
    }


def processor() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor()


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=100, help="candidates per limit")
    parser.add_argument("--checked", type=int, default=5, help="of these, how many the plain loop plans too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "planning.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name, allowed in NETWORKS.items():
        result = measure(name, options.candidates, options.checked)
        results.append(result)
        for row in result["limits"]:
            print(
                f"{name:12} {result['units']:6} units {result['filters']:6} filters  macs={row['macs']}  "
                f"{row['median_ms']:.3f} ms (p95 {row['p95_processor_ms']:.3f})  "
                f"of {TOGETHER} at once {row['together_ms']:.3f} ms  "
                f"plain {row['plain_loop_ms']:.1f} ms  x{row['ratio']:.0f}"
                + (f"  allowed {allowed} ms" if allowed else "")
            )
    machine = {
        "processor": processor(),
        "threads": 1,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    write_json(options.out, {"machine": machine, "min_keep": MIN_KEEP, "results": results})


if __name__ == "__main__":
    main()
