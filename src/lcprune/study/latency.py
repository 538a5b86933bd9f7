"""How long the networks of a study take, measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from lcprune.files import write_json
from lcprune.latency import measure
from lcprune.study.study import Study


def record_latency(study: Study, batch_sizes: Sequence[int], rounds: int = 15) -> None:
    """Measure every network of a study (the first trial of each) and record it; once."""
    if study.run.records("latency"):
        return
    results = study.run.records("results")
    first = {row["network"]: row for row in reversed(results)}
    chosen = {name: first[name] for name in dict.fromkeys(row["network"] for row in results)}
    networks = {name: study.model_of(row) for name, row in chosen.items()}
    given = (networks, study.network.example, batch_sizes)
    measured = measure(*given, device=study.device, rounds=rounds, progress=study.progress)
    rows = [
        {**asdict(record), "method": chosen[record.network]["method"], "limit": chosen[record.network]["limit"]}
        for record in measured
    ]
    study.run.add("latency", *rows)
    single = {row["network"]: row["ms"] for row in rows if row["batch_size"] == batch_sizes[0]}
    for row in results:
        row["latency_ms"] = single.get(row["network"])
    write_json(study.run.file("records", "results.json"), results, indent=1)
