"""What the order gains in which a group's units go: searches after repair that rank by `l2` and by `rebuilt`.

    python benchmarks/order.py           # a few minutes on two cores; writes results/order.json
    python benchmarks/order.py --show    # the table of docs/method.md

Three networks on digits, three limits, three seeds; uniform and naive pruning and LcP (100 candidates), repaired.
`difference` is the objective of the network that LcP chose, `accuracy` that of the repaired network on images that
nothing else saw.
"""

from __future__ import annotations

import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import digit_networks
import torch

import lcprune

OUT = Path(__file__).parent / "results" / "order.json"
NETWORKS, LIMITS, SEEDS = ("plain", "residual", "separable"), (0.5, 0.3, 0.2), (0, 1, 2)
METRICS = ("l2", "rebuilt")
SEARCH = lcprune.Search(pool=32, iterations=68)
IMAGES = 1300


def measure(cell: tuple[str, int]) -> list[dict[str, Any]]:
    """One trained network, pruned to every limit in every way."""
    name, seed = cell
    torch.set_num_threads(1)
    images, labels, held_images, held_labels = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](width=16), images, labels, 10, seed)
    graph, data = lcprune.trace(model, images[:2]), digit_networks.batches(images, labels, 64)
    rows = []
    for limit, metric, method in product(LIMITS, METRICS, ("uniform", "naive", lcprune.LcP(SEARCH))):
        given = lcprune.Evaluation(data, images=IMAGES)
        result = lcprune.prune(graph, macs=limit, method=method, metric=metric, data=given, seed=seed, progress=False)
        with torch.no_grad():
            right = (result.model.eval()(held_images).argmax(1) == held_labels).float().mean()
        row = {"network": name, "seed": seed, "limit": limit, "metric": metric, "method": result.plan.meta["method"]}
        rows.append(row | {"difference": result.plan.meta.get("difference"), "accuracy": float(right)})
    return rows


def show() -> None:
    """Per network: mean accuracies, what LcP found, and how often `rebuilt` found better."""
    rows = json.loads(OUT.read_text())["rows"]
    kinds = [f"{method}, `{metric}`" for method, metric in product(("uniform", "naive", "LcP"), METRICS)]
    print("| network | " + " | ".join(kinds) + " | LcP's objective | better |\n|---|" + "---|" * (len(kinds) + 2))
    for name in NETWORKS:
        cells, found = [], {}
        for method, metric in product(("uniform", "naive", "lcp"), METRICS):
            mine = [row for row in rows if (row["network"], row["method"], row["metric"]) == (name, method, metric)]
            cells.append(f"{100 * statistics.mean(row['accuracy'] for row in mine):.1f}")
            found[method, metric] = [row["difference"] for row in mine]
        old, new = (found["lcp", metric] for metric in METRICS)
        better = sum(b < a for a, b in zip(old, new, strict=True))
        cells.append(f"{statistics.mean(old):.3f} → {statistics.mean(new):.3f}")
        print(f"| {name} | " + " | ".join(cells) + f" | {better} of {len(old)} |")


if __name__ == "__main__":
    digit_networks.run(measure, product(NETWORKS, SEEDS), OUT, {"images": IMAGES}, show, __doc__)
