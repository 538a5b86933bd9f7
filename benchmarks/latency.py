"""How well tables predict latency, and what a latency limit is worth beside a limit on MACs.

    python benchmarks/latency.py --device cpu                       # writes benchmarks/results/latency-cpu.json
    python benchmarks/latency.py --device cuda --data cifar10:PATH  # writes benchmarks/results/latency-cuda.json
    python benchmarks/latency.py --only loss --networks digits_resnet

A piece is one network, backend and batch size, of one kind:

    prediction   a table is measured, 30 randomly cut networks are predicted and then measured in turns, ten at a time
                 with the whole network among them; beside it, a line through MACs fitted to the same calibration
    loss         at the same measured latency, the loss before tuning of LcP whose search knows the latency, LcP whose
                 search knows MACs alone, naive and uniform pruning; real data, searched on training images

Pieces that the file has are not measured again, so a run that was stopped, or ran out of `--minutes`, goes on.
Weights are random where only time is measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import data as datasets
from lcprune import latency, methods, metrics, models
from lcprune.evaluate import draw
from lcprune.files import write_json
from lcprune.latency.backends import device_name
from lcprune.latency.build import calibrate, fit
from lcprune.latency.hold import hold
from lcprune.latency.limit import Clock, tightened
from lcprune.latency.steps import read_steps
from lcprune.search import Search, Space
from lcprune.select import Limits, Ranking
from lcprune.select.limits import Extra
from lcprune.task import Kept, Task
from lcprune.tune import evaluate

ROOT = Path(__file__).parents[1]
NETWORKS = ("resnet56", "torchvision:mobilenet_v2", "torchvision:resnet50")
SLOW_MS = 300.0  # networks that take longer are measured fewer times, and at widths of any kind only
BACKENDS = {"cpu": ("eager", "onnx"), "cuda": ("cudagraph", "eager")}
WAYS = ("lcp by latency", "lcp by MACs", "naive", "uniform")
PAGE = ROOT / "docs" / "how-to" / "latency.md"
WEIGHTS = {"resnet56": ROOT / "examples" / "resnet56-cifar10.safetensors"}
# kind of device -> network -> (backend, batch size, shares of the latency, candidates, images)
LOSSES: dict[str, dict[str, list[tuple[str, int, tuple[float, ...], int, int]]]] = {
    "cpu": {
        "digits_resnet": [("eager", 256, (0.95, 0.85), 200, 1000), ("onnx", 256, (0.95, 0.85), 200, 1000)],
        "resnet56": [("eager", 1, (0.6,), 60, 500)],
    },
    "cuda": {"resnet56": [("cudagraph", 1024, (0.7, 0.5), 200, 3000), ("cudagraph", 64, (0.9,), 200, 3000)]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--networks", nargs="+", help="all by default")
    parser.add_argument("--backends", nargs="+", help="for predictions; the device's own by default")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--data", help="where CIFAR-10 is, e.g. cifar10:PATH; without it only digits are real data")
    parser.add_argument("--only", choices=("prediction", "loss"))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no piece after so many")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write-docs", action="store_true", help="only put what was recorded into the documentation")
    arguments = parser.parse_args()
    if arguments.write_docs:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    out = arguments.out or ROOT / "benchmarks" / "results" / f"latency-{arguments.device}.json"
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"pieces": {}}
    record.update(machine(arguments.device))
    started = time.perf_counter()
    for name, make in pieces(arguments):
        if name in record["pieces"]:
            continue
        if time.perf_counter() - started > 60 * arguments.minutes:
            print(f"out of time before {name}; run the same command again to go on", flush=True)
            break
        began = time.perf_counter()
        for piece, found in make().items():
            record["pieces"][piece] = found
            print(f"{piece}: {summary(found)}", flush=True)
        record["pieces"][name]["seconds"] = round(time.perf_counter() - began, 1)
        write_json(out, record, indent=1)


def machine(device: str) -> dict[str, Any]:
    """What it ran on."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device == "cpu":
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    return {"device": device_name(torch.device(device)), "threads": torch.get_num_threads(), "versions": versions}


def pieces(arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Name and function of every piece; the function gives one result per name, of which the first is the piece's."""
    device = arguments.device
    backends = arguments.backends or BACKENDS[device]
    if arguments.only != "loss":
        # Cheap ones first: a run that is cut short has the most to show.
        for batch in arguments.batches:
            for network in arguments.networks or NETWORKS:
                if network not in NETWORKS:
                    continue
                for backend in backends:
                    name = f"prediction {network} {backend} batch {batch}"
                    yield name, lambda n=network, b=backend, s=batch: predictions(n, b, s, device, arguments.plans)
    if arguments.only != "prediction":
        for network, settings in LOSSES[device].items():
            if arguments.networks and network not in arguments.networks:
                continue
            if network != "digits_resnet" and not arguments.data:
                print(f"loss {network}: skipped, it needs --data")
                continue
            for backend, batch, shares, candidates, images in settings:
                name = f"loss {network} {backend} batch {batch}"
                data = "digits" if network == "digits_resnet" else arguments.data
                settings_of = (network, backend, batch, device, data, shares, candidates, images)
                yield name, lambda n=name, s=settings_of: {n: losses(*s)}


# -- prediction -------------------------------------------------------------------------------------------------


def predictions(network: str, backend: str, batch: int, device: str, plans: int) -> dict[str, Any]:
    """Predicted and measured latency of random plans; on CUDA all backends share the layers' times."""
    model = models.build(network).to(device).eval()
    graph = lcprune.trace(model, models.example_input(network).to(device))
    runner = latency.make_backend(backend, device)
    table = latency.measure_table(graph, batch=batch, backend=runner, cache=False, progress=False)
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
    rows = []
    slow = table.calibration[0]["measured_ms"] > SLOW_MS
    for first in range(0, len(chosen), 10):
        part = chosen[first : first + 10]
        models_of = {"whole": graph.model} | {str(i): networks[first + i] for i in range(len(part))}
        rounds = (1, 2) if slow else (5, 9)
        times = latency.measure_networks(backend, models_of, graph.example_inputs, table.batch, rounds)
        for index, kept in enumerate(part):
            counts = np.array([len(units) for units in kept])
            rows.append(
                {
                    "macs_share": float(graph.cost.macs(counts)) / graph.macs,
                    "predicted_ms": predict(counts),
                    "by_macs_ms": by_macs(counts),
                    "measured_ms": times[str(index)],
                    "whole_ms": times["whole"],
                }
            )
    started = time.perf_counter()
    for _ in range(100):
        predict(graph.cost.sizes)
    return {
        "plans": rows,
        "error": errors(rows, "predicted_ms"),
        "error_by_macs": errors(rows, "by_macs_ms"),
        "multiple_of": width,
        "correction": asdict(table.rounded.get(width, table.correction)),
        "layer_shapes": len(table.layers),
        "table_seconds": round(table.seconds, 1),
        "evaluation_us": round((time.perf_counter() - started) * 1e4, 1),
        "whole_ms": rows[0]["whole_ms"],
        "smallest_ms": min(row["measured_ms"] for row in rows),
    }


def errors(rows: Sequence[dict[str, float]], name: str) -> dict[str, float]:
    """Median and 90th percentile of the error, as shares of what was measured."""
    found = np.array([row[name] / row["measured_ms"] - 1 for row in rows])
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
    line = fit(macs / macs[0], times, True) if launches else fit(macs[1:] / macs[0], times[1:])
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


# -- loss -------------------------------------------------------------------------------------------------------


def losses(
    network: str,
    backend: str,
    batch: int,
    device: str,
    data: str,
    shares: Sequence[float],
    candidates: int,
    images: int,
) -> dict[str, Any]:
    """Loss before tuning at equal measured latency."""
    dataset = datasets.load(data)
    model = trained(network, dataset, device)
    graph = lcprune.trace(model, models.example_input(network).to(device))
    clock = latency.make_clock(graph, batch=batch, backend=backend, multiple_of="auto", progress=False)
    pool = min(64, candidates // 4)
    search = Search(pool=pool, iterations=candidates - pool, sample=max(2, pool // 4), images=images)
    samples = draw(dataset.batches("train", 128, limit=images, seed=0, device=device), images, 0)
    whole = Task(
        graph, Limits(macs=1.0), samples=samples, loss_fn=cross_entropy, search=search, multiple_of=clock.width
    )
    plain = evaluate(model, dataset, "test", device=device)
    rows = [{"method": "original", "loss": plain[0], "accuracy": plain[1]}]
    rows += [at_latency(whole, clock, share, way, dataset, device) for share in shares for way in WAYS]
    return {
        "rows": rows,
        "candidates": candidates,
        "images": images,
        "multiple_of": clock.width,
        "whole_ms": clock.whole,
    }


def at_latency(whole: Task, clock: Clock, share: float, method: str, dataset: Any, device: str) -> dict[str, Any]:
    """One method's network at one latency: measured, and cut further while it is above."""
    graph = whole.graph
    limits = Limits(extra={"latency_ms": Extra(clock.predict, share, clock.whole)})
    task = with_limits(whole, limits)
    row: dict[str, Any] = {"method": method, "share": share}
    beta: NDArray[np.float64] | None = None
    started = time.perf_counter()
    try:
        if method == "lcp by latency":
            beta = methods.learn(task).beta
        elif method == "lcp by MACs":
            # As many MACs as naive pruning has at this latency: the search is about as deep as the other one.
            naive = task.ranking.counts(limits)
            beta = methods.learn(with_limits(whole, Limits(macs=float(graph.cost.macs(naive)) / graph.macs))).beta

        def select(some: Limits) -> Kept:
            return task.ranking.uniform(some) if method == "uniform" else task.ranking.select(some, beta=beta)

        def cut(kept: Kept) -> tuple[Any, Any]:
            plan = graph.plan(kept)
            return plan, plan.apply(graph.model)

        plan, smaller, outcome = hold(
            clock, f"{100 * share:g}%", select(limits), cut, lambda ms: select(tightened(limits, clock, ms))
        )
    except lcprune.BudgetError as error:
        return {**row, "cannot": str(error)}
    loss, accuracy = evaluate(smaller, dataset, "test", device=device)[:2]
    return {
        **row,
        "train_loss": whole.evaluator.loss([np.array(units) for units in plan.kept.values()]),
        "loss": float(loss),
        "accuracy": float(accuracy),
        "macs_share": plan.macs / plan.original_macs,
        "latency": outcome.to_json(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def with_limits(task: Task, limits: Limits) -> Task:
    """The same task under other limits, with the scores and losses that it has."""
    other = replace(task, limits=limits)
    other.scores, other.evaluator = task.scores, task.evaluator
    return other


def trained(network: str, dataset: Any, device: str) -> Any:
    """The network with its weights; the one for digits is trained here, in seconds."""
    if network in WEIGHTS:
        from safetensors.torch import load_file

        model = models.build(network, num_classes=dataset.num_classes)
        model.load_state_dict(load_file(WEIGHTS[network]))
        return model.to(device).eval()
    from lcprune.tune import fit as train
    from lcprune.tune import recipe

    torch.manual_seed(0)
    model = models.build(network, num_classes=dataset.num_classes)
    train(
        model, dataset, recipe("baseline", epochs=15, batch_size=64, schedule="cosine"), progress=False, device=device
    )
    return model.to(device).eval()


# -- documentation ----------------------------------------------------------------------------------------------


def with_tables(page: str) -> str:
    """The page with the tables of what was recorded between its markers; nothing there where nothing was."""
    for device in ("cpu", "cuda"):
        file = ROOT / "benchmarks" / "results" / f"latency-{device}.json"
        text = tables(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ""
        start, end = f"<!-- {device} -->\n", f"<!-- end of {device} -->"
        before, _, rest = page.partition(start)
        page = before + start + text + end + rest.partition(end)[2]
    return page


def tables(record: dict[str, Any]) -> str:
    """What was recorded on one device, as Markdown."""
    lines = [
        f"On {record['device']}:",
        "",
        "| network, backend, batch | table: median | 90 % below | MACs: median | 90 % below | whole network (ms) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, piece in record["pieces"].items():
        if name.startswith("prediction"):
            errors_of = [piece[kind][part] for kind in ("error", "error_by_macs") for part in ("median", "p90")]
            cells = [f"{100 * error:.1f} %" for error in errors_of]
            lines.append(f"| {name.removeprefix('prediction ')} | {' | '.join(cells)} | {piece['whole_ms']:.3g} |")
    if not any(name.startswith("loss") for name in record["pieces"]):
        return "\n".join([*lines, "", "Losses have not been measured on this device.", ""])
    lines += [
        "",
        "| network, backend, batch | latency | LcP by latency | LcP by MACs | naive | uniform |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, piece in record["pieces"].items():
        if name.startswith("loss"):
            for share in sorted({row["share"] for row in piece["rows"] if "share" in row}, reverse=True):
                ways = {row["method"]: row for row in piece["rows"] if row.get("share") == share}
                cells = [cell(ways[way]) for way in WAYS]
                lines.append(f"| {name.removeprefix('loss ')} | {share:.0%} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def cell(row: dict[str, Any]) -> str:
    """Loss on test images, and what share of the original's latency was measured."""
    if "cannot" in row:
        return "cannot be met"
    return f"{row['loss']:.2f} ({row['latency']['measured_ms'] / row['latency']['original_ms']:.0%})"


def summary(found: dict[str, Any]) -> str:
    """A piece in one line."""
    if "error" in found:
        error, macs = found["error"], found["error_by_macs"]
        return (
            f"median {error['median']:.1%}, 90 % below {error['p90']:.1%} "
            f"(MACs: {macs['median']:.1%}, {macs['p90']:.1%}); "
            f"table {found['table_seconds']} s; {found['smallest_ms']:.3g} to {found['whole_ms']:.3g} ms"
        )
    parts = [
        f"{row['method']} {row.get('share', 1):.0%}: " + (f"{row['loss']:.3f}" if "loss" in row else "cannot")
        for row in found["rows"]
    ]
    return "; ".join(parts)


if __name__ == "__main__":
    main()
