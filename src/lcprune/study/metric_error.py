"""What a metric says about a unit, beside how far the loss really moves without it (the paper's figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lcprune.batches import draw
from lcprune.evaluate import make_evaluator
from lcprune.progress import Progress
from lcprune.scoring import metrics as known
from lcprune.study.study import Study


def record_metric_error(study: Study, metrics: Sequence[str], units: int, seed: int = 0) -> None:
    """Measure and record; nothing if it was recorded before.

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
    chosen = [_spread(scores[metrics[0]][i], units) for i in range(len(graph.groups))]
    with Progress("true loss", total=sum(map(len, chosen)), enabled=study.progress) as bar:
        for position, (group, picked) in enumerate(zip(graph.groups, chosen, strict=True)):
            for unit in picked:
                kept = np.delete(np.arange(group.size), unit)
                difference = judge.loss({group.name: kept}) - full
                bar.advance(group=group.name)
                rows += [
                    {
                        "metric": name,
                        "group": group.name,
                        "position": position,
                        "unit": int(unit),
                        "score": float(scores[name][position][unit]),
                        "difference": difference,
                    }
                    for name in metrics
                    if np.isfinite(difference)
                ]
    study.run.add("metric", *rows)


def _spread(scores: np.ndarray, units: int) -> list[int]:
    """Units from the lowest to the highest score, evenly."""
    order = np.argsort(scores, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(units, len(order))).round().astype(int))
    return [int(order[place]) for place in places] if len(order) > 1 else []
