"""Loss differences of LcP, naive and uniform pruning on trained digits networks, before any tuning.

    python benchmarks/digits.py                     # all: four networks, three seeds, four limits
    python benchmarks/digits.py --plot              # only draw what benchmarks/results/digits.json holds

Each network is trained from three seeds, then cut to 70, 50, 30 and 20 % of its MACs by each method. LcP
searches at every limit with the paper's settings on all training images. What is reported is
|L(full) - L(pruned)| on the training images, which is what the search minimises, and on held-out images,
which it never saw.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import digit_networks
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.files import atomic_write, write_json
from lcprune.report.figure import concat, field, layer

METHODS = ("lcp", "naive", "uniform")
RESULTS = Path(__file__).parent / "results" / "digits.json"
PLOT = Path(__file__).parents[1] / "docs" / "digits.svg"


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Mean cross entropy."""
    with torch.inference_mode():
        return float(cross_entropy(model.eval()(images), labels))


def measure(network: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one network and prune it to every limit by every method."""
    images, labels, held_images, held_labels = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.NETWORKS[network](width=options.width)
    digit_networks.train(model, images, labels, options.epochs, seed)
    full = {"train": loss(model, images, labels), "held_out": loss(model, held_images, held_labels)}
    with torch.inference_mode():
        accuracy = float((model(held_images).argmax(1) == held_labels).float().mean())
    graph = lcprune.trace(model, images[:2])
    search = lcprune.Search(pool=options.pool, iterations=options.iterations)
    points = []
    for limit in options.macs:
        for method in METHODS:
            result = lcprune.prune(
                graph,
                repair="none",
                macs=limit,
                method=lcprune.LcP(search) if method == "lcp" else method,
                metric=options.metric,
                data=lcprune.Evaluation(digit_networks.batches(images, labels), after="cut"),
                seed=seed,
                progress=False,
            )
            points.append(
                {
                    "limit": limit,
                    "method": method,
                    "macs": result.plan.macs / graph.macs,
                    "train": abs(loss(result.model, images, labels) - full["train"]),
                    "held_out": abs(loss(result.model, held_images, held_labels) - full["held_out"]),
                    "seconds": {name: round(value, 4) for name, value in result.seconds.items()},
                    "evaluations": result.plan.meta.get("evaluations", 0),
                }
            )
    return {
        "network": network,
        "seed": seed,
        "macs": graph.macs,
        "params": graph.params,
        "groups": len(graph.groups),
        "full_loss": full,
        "accuracy": accuracy,
        "points": points,
    }


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many points hold, which do not, and what share of its time the search spent on itself."""
    counts = {f"{a} <= {b}, {where}": [0, 0] for a, b in ORDER for where in ("train", "held_out")}
    broken = []
    planning = total = 0.0
    for run in runs:
        by_limit: dict[float, dict[str, Any]] = {}
        for point in run["points"]:
            by_limit.setdefault(point["limit"], {})[point["method"]] = point
            planning += point["seconds"].get("planning", 0.0)
            total += point["seconds"].get("total", 0.0)
        for limit, methods in by_limit.items():
            for a, b in ORDER:
                for where in ("train", "held_out"):
                    holds = methods[a][where] <= methods[b][where] + 1e-6
                    counts[f"{a} <= {b}, {where}"][0] += holds
                    counts[f"{a} <= {b}, {where}"][1] += 1
                    if not holds:
                        broken.append(
                            {
                                "network": run["network"],
                                "seed": run["seed"],
                                "limit": limit,
                                "images": where,
                                a: methods[a][where],
                                b: methods[b][where],
                            }
                        )
    return {
        "holds": {name: f"{good} of {of}" for name, (good, of) in counts.items()},
        "does_not_hold": broken,
        "search_own_share": planning / total if total else 0.0,
    }


ORDER = (("lcp", "naive"), ("naive", "uniform"), ("lcp", "uniform"))


def plot(results: dict[str, Any], path: Path) -> None:
    """One panel per network: loss difference on held-out images against MACs, every seed a faint line."""
    import vl_convert

    rows = [
        {"network": run["network"], "seed": run["seed"], "images": name, **point, "difference": point[where]}
        for run in results["runs"]
        for point in run["points"]
        for where, name in (("train", "training images"), ("held_out", "held-out images"))
    ]
    colours = {"domain": list(METHODS), "range": ["#0b6e4f", "#d97706", "#6b7280"]}
    axis = {"format": "%", "values": [0.2, 0.3, 0.5, 0.7]}
    shared = {
        "x": field("limit:Q", title="MACs, share of the network", axis=axis),
        "color": field("method:N", scale=colours, title=None),
    }
    title = "|L(full) − L(pruned)|"
    single = field("difference:Q", title=title, scale={"type": "symlog", "constant": 0.1})
    mean = field("difference:Q", title=title, aggregate="mean")
    layers = [
        layer("line", {**shared, "y": single, "detail": field("seed:N")}, opacity=0.25, strokeWidth=1),
        layer("line", {**shared, "y": mean}, point={"size": 28}, strokeWidth=2),
    ]
    ink = {"gridColor": "#f3f4f6", "labelColor": "#374151", "titleColor": "#374151", "titleFontWeight": "normal"}
    spec = concat(
        data={"values": rows},
        facet={
            "column": field("network:N", title=None, sort=list(digit_networks.NETWORKS)),
            "row": field("images:N", title=None, sort=["training images", "held-out images"]),
        },
        spec={"width": 170, "height": 150, "layer": layers},
        config={"view": {"stroke": "#e5e7eb"}, "axis": ink},
    )
    with atomic_write(path) as temporary:
        temporary.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(digit_networks.NETWORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--macs", nargs="+", type=float, default=[0.7, 0.5, 0.3, 0.2])
    parser.add_argument("--metric", default="l2")
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=336)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--plot", action="store_true", help="draw stored results and do nothing else")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.out.read_text(encoding="utf-8")), PLOT)
        return
    torch.set_num_threads(options.threads)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "plot")}
    runs: list[dict[str, Any]] = []
    for seed in options.seeds:
        for network in options.networks:
            started = time.perf_counter()
            runs.append(measure(network, seed, options))
            results = {
                "what": "loss difference on digits before tuning",
                "settings": settings,
                "machine": f"{platform.processor() or platform.machine()}, {options.threads} thread(s)",
                "torch": torch.__version__,
                "runs": runs,
                "summary": summarise(runs),
            }
            write_json(options.out, results)
            print(f"{network} seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
            for point in runs[-1]["points"]:
                print(
                    f"  {point['limit']:.0%} {point['method']:8} train {point['train']:.4f}"
                    f"  held out {point['held_out']:.4f}",
                    flush=True,
                )
    print(json.dumps(results["summary"], indent=2))


if __name__ == "__main__":
    main()
