"""What is measured of a whole study, once: latencies, and how well metrics predict (the paper's figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from lcprune.batches import draw
from lcprune.evaluate import make_evaluator
from lcprune.files import write_json
from lcprune.latency import measure
from lcprune.progress import Progress
from lcprune.runs import Row
from lcprune.scoring import metrics as known
from lcprune.study.study import Study


def record_latency(study: Study, batch_sizes: Sequence[int], rounds: int) -> None:
    """Measure every network of a study (the first trial of each) and record it; once."""
    if study.run.records("latency"):
        return
    results = study.run.records("results")
    chosen: dict[str, Row] = {}
    for row in results:
        chosen.setdefault(row["network"], row)
    networks = {name: study.model_of(row) for name, row in chosen.items()}
    example, device = study.network.example, study.device
    measured = measure(networks, example, batch_sizes, device=device, rounds=rounds, progress=study.progress)
    rows = [{**asdict(one), **{key: chosen[one.network][key] for key in ("method", "limit")}} for one in measured]
    study.run.add("latency", *rows)
    single = {row["network"]: row["ms"] for row in rows if row["batch_size"] == batch_sizes[0]}
    for row in results:
        row["latency_ms"] = single.get(row["network"])
    write_json(study.run.file("records", "results.json"), results, indent=1)


def record_metric_error(study: Study, metrics: Sequence[str], units: int, seed: int = 0) -> None:
    """Record what metrics say about units, beside how far the loss really moves without them; once.

    Args:
        units: how many units of each group, spread evenly over the group's scores.
        seed: of the images.
    """
    if study.run.records("metric"):
        return
    graph = study.graph
    batches = study.batches(seed)
    scores = {name: known.score(graph, name, batches, study.evaluation.loss, seed=seed) for name in metrics}
    judge = make_evaluator(graph, draw(batches, study.evaluation.images, seed), replace(study.evaluation, after="cut"))
    full = judge.full_loss()
    rows = []
    spread = [_spread(array, units) for array in scores[metrics[0]]]
    with Progress("true loss", total=sum(map(len, spread)), enabled=study.progress) as bar:
        for position, (group, chosen) in enumerate(zip(graph.groups, spread, strict=True)):
            for unit in chosen:
                difference = judge.loss({group.name: np.delete(np.arange(group.size), unit)}) - full
                bar.advance(group=group.name)
                if np.isfinite(difference):
                    place = {"group": group.name, "position": position, "unit": unit}
                    said = {name: float(scores[name][position][unit]) for name in metrics}
                    rows += [{"metric": m, **place, "score": s, "difference": difference} for m, s in said.items()]
    study.run.add("metric", *rows)


def _spread(scores: np.ndarray, units: int) -> list[int]:
    """Units from the lowest to the highest score, evenly."""
    order = np.argsort(scores, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(units, len(order))).round().astype(int))
    return [int(order[place]) for place in places] if len(order) > 1 else []
