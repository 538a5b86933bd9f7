"""Three ways to learn a frontier, on digits: what each finds at each limit, and how many networks it judges.

    python benchmarks/frontier.py            # about five minutes on one core; writes results/frontier.json

Four networks, three seeds, limits of 70 to 20 % of the MACs; loss differences before tuning, on the training images
that the search saw. Ratios are over naive pruning at the same limit: below 1 is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import digit_networks
import torch

import lcprune
from lcprune.compensations import LEARN
from lcprune.files import write_json

LIMITS = [0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
OUT = Path(__file__).parent / "results" / "frontier.json"


def measure(name: str, seed: int, learn: str, candidates: int, images: int) -> dict[str, Any]:
    """One frontier."""
    train, labels, *_ = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](), train, labels, epochs=20, seed=seed)
    pool = candidates * 64 // 400
    search = lcprune.Search(pool=pool, iterations=candidates - pool, sample=max(2, pool // 4))
    started = time.perf_counter()
    found = lcprune.pareto(
        model,
        train[:2],
        repair="none",
        data=lcprune.Evaluation(digit_networks.batches(train, labels, 64), images=images, after="cut"),
        macs=LIMITS,
        methods=(lcprune.LcP(search), "naive"),
        learn=learn,
        seed=seed,
        progress=False,
    )
    return {
        "network": name,
        "seed": seed,
        "learn": learn,
        "limits": LIMITS,
        "lcp": [point.difference for point in found.curve("lcp")],
        "naive": [point.difference for point in found.curve("naive")],
        "candidates": sum(map(len, found.histories.values())),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=200, help="of one search")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=list(digit_networks.NETWORKS))
    parser.add_argument("--learn", nargs="+", default=list(LEARN), choices=LEARN, help="others stay as recorded")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
    rows = [row for row in before if row["learn"] not in options.learn]
    for name in options.networks:
        for seed in range(options.seeds):
            for learn in options.learn:
                rows.append(measure(name, seed, learn, options.candidates, options.images))
                ratios = [
                    ours / max(naive, 1e-9) for ours, naive in zip(rows[-1]["lcp"], rows[-1]["naive"], strict=True)
                ]
                print(name, seed, learn, " ".join(f"{ratio:.2f}" for ratio in ratios), flush=True)
                write_json(options.out, {"what": "loss differences of frontiers", "rows": rows})
    for learn in LEARN:
        ratios = [
            [row["lcp"][index] / max(row["naive"][index], 1e-9) for row in rows if row["learn"] == learn]
            for index in range(len(LIMITS))
        ]
        print(learn, "median over naive:", " ".join(f"{statistics.median(values):.2f}" for values in ratios))


if __name__ == "__main__":
    main()
