"""Which objective of the search gives better networks after tuning, on digits.

    python benchmarks/objective.py           # some 40 minutes on two cores; writes results/objective.json

Four networks, three seeds, limits of 70 to 10 % of the MACs. Each network is cut by naive and uniform pruning and by
LcP, whose search judges candidates as they were cut ("plain", the paper's objective), with new batch-norm statistics
("recalibrated") or repaired (by the metric "l2", or "rebuilt"); then all are tuned in the same way, from the weights as
cut. A quarter of the training images is held out of training, searching and tuning, and what is compared is the loss
there; the test images of digits are not used, so that a default may be chosen by what this finds.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import digit_networks
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.files import write_json

Row = dict[str, Any]

LIMITS = (0.7, 0.5, 0.3, 0.2, 0.1)
SEARCHES = {  # in the table -> Evaluation.after, metric
    "plain": ("cut", "l2"),
    "recalibrated": ("statistics", "l2"),
    "repaired": ("repair", "rebuilt"),
    "repaired by l2": ("repair", "l2"),
}
METHODS = ("naive", "uniform", *SEARCHES)
SETTINGS = {"candidates": 200, "images": 500, "epochs": 20, "tuning_epochs": 20, "tuning_rate": 0.01}
OUT = Path(__file__).parent / "results" / "objective.json"


def judge(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Loss and accuracy."""
    with torch.inference_mode():
        logits = model.eval()(images)
    right = (logits.argmax(1) == labels).float().mean()
    return {"loss": float(cross_entropy(logits, labels)), "accuracy": float(right)}


def measure(name: str, seed: int, settings: dict[str, Any]) -> list[Row]:
    """One trained network, cut to every limit by every method and tuned."""
    torch.set_num_threads(1)
    images, labels, *_ = digit_networks.digits()
    apart = torch.arange(len(labels)) % 4 == 3
    held, (images, labels) = (images[apart], labels[apart]), (images[~apart], labels[~apart])
    shares = labels.bincount() / len(labels)
    guessing = float(-(shares * shares.log()).sum())
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](), images, labels, settings["epochs"], seed)
    graph, data = lcprune.trace(model, images[:2]), digit_networks.batches(images, labels, 64)
    pool = settings["candidates"] * 64 // 400

    search = lcprune.Search(pool=pool, iterations=settings["candidates"] - pool, sample=max(2, pool // 4))

    def cut(limit: float, method: str) -> dict[str, Any]:
        chosen = lcprune.LcP(search) if method in SEARCHES else method
        after, metric = SEARCHES.get(method, ("cut", "l2"))
        how = lcprune.Evaluation(data, images=settings["images"], after=after)
        result = lcprune.prune(
            graph, macs=limit, method=chosen, metric=metric, data=how, seed=seed, repair="none", progress=False
        )
        tuned = copy.deepcopy(result.model)
        digit_networks.train(tuned, images, labels, settings["tuning_epochs"], 1000 + seed, settings["tuning_rate"])
        return {
            "macs": result.plan.macs / graph.macs,
            "before": judge(result.model, images, labels)["loss"],
            "after": judge(tuned, images, labels)["loss"],
            "held_out": judge(tuned, *held),
            "candidates": len(result.history),
            "evaluations": result.plan.meta.get("evaluations", 0),
            "seconds": result.seconds.get("total", 0.0),
        }

    rows = []
    for limit in LIMITS:
        row: Row = {"network": name, "seed": seed, "limit": limit, "guessing": guessing, "full": judge(model, *held)}
        row |= {method: cut(limit, method) for method in METHODS}
        row["chance"] = row["naive"]["before"] >= guessing
        rows.append(row)
    return rows


def loss(row: Row, method: str) -> float:
    """On held-out images, after tuning."""
    return float(row[method]["held_out"]["loss"])


def compare(rows: Sequence[Row], ours: str, other: str) -> str:
    """What the networks of one method differ by from another's, and in how many cases they are better.

    The interval is of 95 %, by drawing trained networks, each with all of its rows.
    """
    differences = [loss(row, ours) - loss(row, other) for row in rows]
    of_network: dict[tuple[str, int], list[float]] = {}
    for row, difference in zip(rows, differences, strict=True):
        of_network.setdefault((row["network"], row["seed"]), []).append(difference)
    sums = np.array([(sum(values), len(values)) for values in of_network.values()])
    drawn = sums[np.random.default_rng(0).integers(len(sums), size=(10_000, len(sums)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    lower = sum(difference < 0 for difference in differences)
    return f"{statistics.mean(differences):+.3f} [{low:+.3f}, {high:+.3f}], {lower} of {len(rows)}"


def parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each limit, and of where naive pruning leaves something and where it does not."""
    named = {f"to {limit:.0%}".replace("%", " %"): [row for row in rows if row["limit"] == limit] for limit in LIMITS}
    named["all"] = list(rows)
    named["naive better than guessing"] = [row for row in rows if not row["chance"]]
    named["naive no better"] = [row for row in rows if row["chance"]]
    return {name: mine for name, mine in named.items() if mine}


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of the table in docs/method.md."""
    ours, others = "repaired by l2", ("plain", "recalibrated", "repaired", "uniform")
    heads = ["MACs", *METHODS, *(f"{ours} - {other}" for other in others), "search time"]
    lines = [heads, ["---"] * len(heads)]
    for name, mine in parts(rows).items():
        means = [f"{statistics.mean(loss(row, method) for row in mine):.3f}" for method in METHODS]
        ratio = statistics.median(row[ours]["seconds"] / row["plain"]["seconds"] for row in mine)
        lines.append([name, *means, *(compare(mine, ours, other) for other in others), f"{ratio:.1f}"])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--networks", nargs="+", default=list(digit_networks.NETWORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="networks at a time, a core each")
    parser.add_argument("--out", type=Path, default=OUT, help="what it holds of every method is not measured again")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in SETTINGS}
    found: dict[str, Any] = {"what": "held-out losses after tuning", "settings": settings, "rows": []}
    if options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            parser.error(f"{options.out} was made with {found['settings']}; name another file with --out")
    # All methods of a network are measured on one occasion: a row that lacks one is made anew.
    known = {(row["network"], row["seed"]) for row in found["rows"] if set(METHODS) <= set(row)}
    missing = [piece for seed in options.seeds for name in options.networks if (piece := (name, seed)) not in known]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure, *piece, settings) for piece in missing]):
            made = {(row["network"], row["seed"]) for row in done.result()}
            rows = [row for row in found["rows"] if (row["network"], row["seed"]) not in made] + done.result()
            found["rows"] = sorted(rows, key=lambda row: (row["network"], row["seed"]))
            write_json(options.out, found, indent=1)
            for row in done.result():
                losses = " ".join(f"{m} {row[m]['before']:.2f} > {loss(row, m):.3f}" for m in METHODS)
                print(f"{row['network']} {row['seed']} {row['limit']:.0%} {losses}", flush=True)
    print("\n".join(table(found["rows"])))


if __name__ == "__main__":
    main()
