"""What races save: searches that stop judging hopeless candidates, beside searches that judge all to the end.

    python benchmarks/race.py           # about 10 minutes on two cores; writes results/race.json
    python benchmarks/race.py --show    # the table of docs/performance.md

Three networks on digits, three limits, three seeds, the same search with and without. `judged` is the share of the
images that candidates ran on; `difference` is the objective of the network that was chosen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import digit_networks
import torch

import lcprune
from lcprune.files import write_json

OUT = Path(__file__).parent / "results" / "race.json"
NETWORKS, LIMITS, SEEDS = ("plain", "residual", "separable"), (0.5, 0.3, 0.2), (0, 1, 2)
IMAGES = 1300


def measure(cell: tuple[str, int]) -> list[dict[str, Any]]:
    """One trained network, searched at every limit with and without races."""
    name, seed = cell
    torch.set_num_threads(1)
    images, labels, *_ = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](width=16), images, labels, 10, seed)
    graph, data = lcprune.trace(model, images[:2]), digit_networks.batches(images, labels, 64)
    rows = []
    for limit in LIMITS:
        row: dict[str, Any] = {"network": name, "seed": seed, "limit": limit}
        for race in (False, True):
            method = lcprune.LcP(lcprune.Search(race=race))
            began = time.perf_counter()
            result = lcprune.prune(
                graph,
                macs=limit,
                method=method,
                data=lcprune.Evaluation(data, images=IMAGES),
                seed=seed,
                repair="none",
                progress=False,
            )
            found = {"difference": result.plan.meta["difference"], "judged": result.plan.meta.get("judged", 1.0)}
            row["race" if race else "all"] = found | {"seconds": time.perf_counter() - began}
        rows.append(row)
    return rows


def show() -> None:
    """Per network: images judged, time, and how often the result is the same, better or worse."""
    rows = json.loads(OUT.read_text())["rows"]
    print("| network | images judged | time | chosen network: same / better / worse |\n|---|---|---|---|")
    for name in NETWORKS:
        mine = [row for row in rows if row["network"] == name]
        judged = statistics.mean(row["race"]["judged"] for row in mine)
        ratio = statistics.median(row["race"]["seconds"] / row["all"]["seconds"] for row in mine)
        change = [row["race"]["difference"] - row["all"]["difference"] for row in mine]
        counts = [sum(test) for test in zip(*((c == 0, c < 0, c > 0) for c in change), strict=True)]
        print(f"| {name} | {judged:.0%} | {ratio:.2f} | {' / '.join(map(str, counts))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    if not parser.parse_args().show:
        with ProcessPoolExecutor(2) as pool:
            rows = [row for part in pool.map(measure, product(NETWORKS, SEEDS)) for row in part]
        write_json(OUT, {"images": IMAGES, "rows": rows}, indent=1)
    show()


if __name__ == "__main__":
    main()
