"""What a model of losses gains: the same searches by plain evolution and guided.

    python benchmarks/guided.py           # on two cores; writes results/guided.json
    python benchmarks/guided.py --show    # the table of docs/method.md

Three networks on digits, three limits, three seeds. Evolution judges 400 candidates, a guided search 200:
each its default. `difference`
is the objective of the network that was chosen, `best` that of the best after so many candidates.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import digit_networks
import torch

import lcprune

OUT = Path(__file__).parent / "results" / "guided.json"
NETWORKS, LIMITS, SEEDS = ("plain", "residual", "separable"), (0.5, 0.3, 0.2), (0, 1, 2)
IMAGES = 1300
AFTER = 25, 50, 100, 200, 400  # candidates
WAYS = ("evolution", "guided")


def measure(cell: tuple[str, int]) -> list[dict[str, Any]]:
    """One trained network, searched at every limit in every way."""
    name, seed = cell
    torch.set_num_threads(1)
    images, labels, *_ = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](width=16), images, labels, 10, seed)
    graph, data = lcprune.trace(model, images[:2]), digit_networks.batches(images, labels, 64)
    rows = []
    for limit in LIMITS:
        row: dict[str, Any] = {"network": name, "seed": seed, "limit": limit}
        for way in WAYS:
            began = time.perf_counter()
            result = lcprune.prune(
                graph,
                macs=limit,
                method=lcprune.LcP(lcprune.Search(algorithm=way)),
                metric="l2",
                data=lcprune.Evaluation(data, images=IMAGES),
                seed=seed,
                repair="none",
                progress=False,
            )
            row[way] = {
                "difference": result.plan.meta["difference"],
                "seconds": time.perf_counter() - began,
                "best": {str(count): result.history[count - 1].best for count in AFTER if count <= len(result.history)},
            }
        rows.append(row)
    return rows


def show() -> None:
    """Per network, the best losses with a guide and without."""
    rows = json.loads(OUT.read_text())["rows"]
    print("| network | " + " | ".join(f"{count} candidates" for count in AFTER) + " |\n|---|" + "---|" * len(AFTER))
    for name in NETWORKS:
        mine = [row for row in rows if row["network"] == name]
        cells = []
        for count in AFTER:
            plain = [row["evolution"]["best"][str(count)] for row in mine]
            cells.append(f"{statistics.mean(plain):.3f}")
            own = [row["guided"]["best"].get(str(count)) for row in mine]
            if None not in own:
                better = sum(a < b for a, b in zip(own, plain, strict=True))
                cells[-1] = f"{statistics.mean(own):.3f} / {cells[-1]} ({better} of {len(mine)})"
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    digit_networks.run(measure, product(NETWORKS, SEEDS), OUT, {"images": IMAGES}, show, __doc__)
