"""How well latency tables predict: random cuts of a network, then measured in turns with the whole one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import lcprune
from lcprune import latency, metrics, models
from lcprune.latency.build import calibrate, fit
from lcprune.latency.steps import read_steps
from lcprune.search import Space
from lcprune.select import Limits, Ranking
from lcprune.task import Kept

# Networks that take longer are measured fewer times, and at widths of any kind only; very slow ones twice.
SLOW_MS, VERY_SLOW_MS = 300.0, 1500.0
TOGETHER = 10  # networks that are measured in turns with the whole one


def predictions(network: str, backend: str, batch: int, device: str, plans: int) -> dict[str, Any]:
    """Predicted and measured latency of random plans; on CUDA all backends share the layers' times."""
    model = models.build(network).to(device).eval()
    graph = lcprune.trace(model, models.example_input(network).to(device))
    runner = latency.make_backend(backend, device)
    table = latency.measure_table(graph, batch=batch, backend=runner, progress=False)
    found = {}
    slow = table.calibration[0]["measured_ms"] > SLOW_MS
    for width in [1] if slow else sorted({1, read_steps(table, graph)}):
        kept = random_plans(graph, plans, width)
        networks = [graph.plan(units).apply(graph.model) for units in kept]
        suffix = "" if width == 1 else f" multiple of {width}"
        table = table if width == 1 else calibrate(table, graph, runner, width)
        found[f"prediction {network} {backend} batch {batch}{suffix}"] = judge(
            graph, table, runner, kept, networks, width
        )
        if backend == "cudagraph" and width == 1:
            eager = latency.make_backend("eager", device)
            again = calibrate(replace(table, backend="eager"), graph, eager)
            found[f"prediction {network} eager batch {batch}"] = judge(graph, again, eager, kept, networks, width)
    return found


def judge(
    graph: Any, table: latency.Table, backend: Any, chosen: Sequence[Kept], networks: Sequence[Any], width: int
) -> dict[str, Any]:
    """The errors of one table."""
    predict = latency.Predictor(table, graph, width)
    by_macs = line_through_macs(graph, table, backend.launches, width)
    before = references(graph, table, width)
    rounds = rounds_of(before["whole"][1], backend.launches)
    rows = []
    for first in range(0, len(chosen), TOGETHER):
        part = chosen[first : first + TOGETHER]
        models_of = {name: model for name, (model, _) in before.items()}
        models_of |= {str(i): networks[first + i] for i in range(len(part))}
        times = latency.measure_networks(backend, models_of, graph.example_inputs, table.batch, rounds)
        speed = float(np.median([times[name] / ms for name, (_, ms) in before.items()]))
        for index, kept in enumerate(part):
            counts = np.array([len(units) for units in kept])
            rows.append(
                {
                    "kept": counts.tolist(),
                    "macs_share": float(graph.cost.macs(counts)) / graph.macs,
                    "predicted_ms": predict(counts),
                    "by_macs_ms": by_macs(counts),
                    "measured_ms": times[str(index)],
                    "whole_ms": times["whole"],
                    "speed": speed,
                }
            )
    started = time.perf_counter()
    for _ in range(100):
        predict(graph.cost.sizes)
    return {
        "plans": rows,
        "error": errors(rows, "predicted_ms"),
        "error_by_macs": errors(rows, "by_macs_ms"),
        "error_absolute": errors([{**row, "speed": 1.0} for row in rows], "predicted_ms"),
        "multiple_of": width,
        "measurements": list(rounds),
        "correction": asdict(table.rounded.get(width, table.correction)),
        "layer_shapes": len(table.layers),
        "table_seconds": round(table.seconds, 1),
        "evaluation_us": round((time.perf_counter() - started) * 1e4, 1),
        "whole_ms": rows[0]["whole_ms"],
        "smallest_ms": min(row["measured_ms"] for row in rows),
    }


def references(graph: Any, table: latency.Table, width: int) -> dict[str, tuple[Any, float]]:
    """Networks that corrected the table, and what they took then: the whole one and two cut ones."""
    entries = [entry for entry in table.calibration if entry["multiple_of"] == width]
    found = {"whole": (graph.model, float(entries[0]["measured_ms"]))}
    for number in (3, 6):
        cut = graph.plan([np.arange(count) for count in entries[number]["kept"]]).apply(graph.model)
        found[f"reference {number}"] = (cut, float(entries[number]["measured_ms"]))
    return found


def rounds_of(whole_ms: float, launches: bool) -> tuple[int, int]:
    """Fewest and most rounds of measuring after the first; more where the host counts, which is unsteady."""
    if whole_ms > VERY_SLOW_MS:
        return (1, 1)
    if whole_ms > SLOW_MS:
        return (1, 2)
    return (7, 13) if launches else (5, 9)


def errors(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Median and 90th percentile of the error, as shares of what was measured.

    Machines are not always equally fast. So predictions are multiplied by what the references take in the same turns,
    as a share of what they took when the table was corrected.
    """
    found = np.array([row["speed"] * row[name] / row["measured_ms"] - 1 for row in rows])
    size = np.abs(found)
    return {
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.median(found)),
    }


def line_through_macs(graph: Any, table: latency.Table, launches: bool, width: int) -> Any:
    """What one would predict from MACs alone: offset and factor fitted to the networks that calibrate the table."""
    entries = [entry for entry in table.calibration if entry["multiple_of"] == width]
    macs = np.array([float(graph.cost.macs(np.array(entry["kept"]))) for entry in entries])
    times = np.array([entry["measured_ms"] for entry in entries])
    line = fit(macs / macs[0], times, launches)
    return lambda counts: max(line.floor, line.offset + line.factor * float(graph.cost.macs(counts)) / macs[0])


def random_plans(graph: Any, number: int, width: int) -> list[Kept]:
    """Half with random widths between floor and full, half selected by random betas, at all depths."""
    rng = np.random.default_rng(1)
    scores = metrics.score(graph, "l2", progress=False)
    ranking, space = Ranking(scores, graph.cost, multiple_of=width), Space.of(scores)
    plans: list[Kept] = []
    for index in range(number):
        if index % 2:
            limit = rng.uniform(0.3, 0.95)
            plans.append(ranking.select(Limits(macs=limit), beta=rng.choice((0.0, 1.0, 3.0)) * space.draw(rng)))
        else:
            low = rng.uniform(0.1, 0.8)
            counts = np.ceil(graph.cost.sizes * rng.uniform(low, 1.0, len(graph.groups)) / width) * width
            plans.append(ranking.kept(np.minimum(graph.cost.sizes, np.maximum(ranking.floors, counts))))
    return plans
