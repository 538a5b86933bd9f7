"""A run folder with records of every kind, small and plausible, for the tests of the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcprune.runs import RunFolder

GROUPS = [(f"layer{stage}.{block}.conv1", 8 * 2**stage) for stage in range(1, 4) for block in range(3)]


def sample_run(path: Path, seeds: int = 1) -> RunFolder:
    rng = np.random.default_rng(0)
    run = RunFolder.create(path, "demo", {"model": "resnet8 <&>", "data": "digits", "search": {"pool": 16}})
    full = {"macs": 4_200_000, "params": 78_000}
    rows = [
        {
            "network": "original",
            "method": "original",
            "limit": None,
            "seed": 0,
            "macs_share": 1.0,
            **full,
            "params_share": 1.0,
            "accuracy_before": None,
            "accuracy": 0.984,
            "latency_ms": 0.61,
        }
    ]
    for limit in (0.5, 0.25):
        for method, start, end in (("uniform", 0.31, 0.962), ("naive", 0.62, 0.968), ("lcp", 0.81, 0.975)):
            for seed in range(seeds):
                drop = (0.5 - limit) * 0.05 + rng.normal(0, 0.002)
                rows.append(
                    {
                        "network": f"{method} {limit:.0%}",
                        "method": method,
                        "resource": "macs",
                        "limit": limit,
                        "seed": seed,
                        "macs": int(full["macs"] * limit * 0.998),
                        "macs_share": limit * 0.998,
                        "params": int(full["params"] * limit * (1.1 if method == "lcp" else 0.95)),
                        "params_share": limit,
                        "accuracy_before": start * (limit + 0.5),
                        "accuracy_repaired": (start + end) / 2,
                        "accuracy": end - drop,
                        "latency_ms": 0.3 + limit / 4,
                    }
                )
            for position, (group, size) in enumerate(GROUPS):
                share = limit if method == "uniform" else float(np.clip(rng.normal(limit + 0.1, 0.25), 0.1, 1))
                run.add(
                    "schedule",
                    {
                        "network": f"{method} {limit:.0%}",
                        "method": method,
                        "limit": limit,
                        "group": group,
                        "position": position,
                        "size": size,
                        "kept": max(1, round(size * share)),
                    },
                )
        differences = 0.9 * np.exp(-np.arange(60) / 25) * rng.uniform(1, 2.5, 60) / limit
        best = np.minimum.accumulate(differences)
        run.add(
            "search",
            *[
                {
                    "network": f"lcp {limit:.0%}",
                    "limit": limit,
                    "iteration": i,
                    "difference": float(differences[i]),
                    "best": float(best[i]),
                    "naive": 1.4 / limit,
                }
                for i in range(60)
            ],
        )
    run.add("results", *rows)
    for metric in ("l1", "l2"):
        for position, (group, _) in enumerate(GROUPS):
            score = rng.lognormal(position / 3, 0.5, 8)
            run.add(
                "metric",
                *[
                    {
                        "metric": metric,
                        "group": group,
                        "position": position,
                        "unit": unit,
                        "score": float(s),
                        "difference": float(s * rng.lognormal(-position, 0.4) / 100),
                    }
                    for unit, s in enumerate(score)
                ],
            )
    for row in rows[:: max(1, seeds)]:
        run.add(
            "latency",
            *[
                {
                    "network": row["network"],
                    "batch_size": size,
                    "ms": row["latency_ms"] / size**0.5,
                    "low": 0.95 * row["latency_ms"] / size**0.5,
                    "high": 1.1 * row["latency_ms"] / size**0.5,
                }
                for size in (1, 4, 16, 64)
            ],
        )
    run.add("training", *[{"network": "original", "epoch": e, "accuracy": 1 - 0.7 * 0.6**e} for e in range(12)])
    return run


@pytest.fixture
def sample():
    """`sample(path, seeds=1)` makes a run folder."""
    return sample_run
