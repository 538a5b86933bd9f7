"""How long the networks of a study take, measured in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lcprune import latency
from lcprune.files import write_json
from lcprune.study.study import Study


def latency_rows(
    networks: Mapping[str, nn.Module],
    example: Tensor,
    batch_sizes: Sequence[int],
    progress: bool,
    rounds: int = 15,
    backend: str = "eager",
) -> list[dict[str, Any]]:
    """Milliseconds per image: a row per network and batch size, with the middle half of the measurements."""
    records = latency.measure(
        networks, example, batch_sizes, device=example.device, backend=backend, rounds=rounds, progress=progress
    )
    return [
        {
            "network": record.model,
            "batch_size": record.batch_size,
            "device": record.device,
            "ms": record.ms_per_image,
            "low": record.low,
            "high": record.high,
            "error": record.error,
        }
        for record in records
    ]


def record_latency(study: Study, batch_sizes: Sequence[int], rounds: int = 15) -> None:
    """Measure every network of a study (the first trial of each) and record it; once."""
    if study.run.records("latency"):
        return
    results = study.run.records("results")
    first = {row["network"]: row for row in reversed(results)}
    chosen = {name: first[name] for name in dict.fromkeys(row["network"] for row in results)}
    networks = {name: study.model_of(row) for name, row in chosen.items()}
    measured = latency_rows(networks, study.network.example, batch_sizes, study.progress, rounds)
    rows = [
        {**row, "method": chosen[row["network"]]["method"], "limit": chosen[row["network"]]["limit"]}
        for row in measured
    ]
    study.run.add("latency", *rows)
    single = {row["network"]: row["ms"] for row in rows if row["batch_size"] == batch_sizes[0]}
    for row in results:
        row["latency_ms"] = single.get(row["network"])
    write_json(study.run.file("records", "results.json"), results, indent=1)
