"""Whether it pays to draw a candidate again that selects a network already judged, on digits.

    python benchmarks/redraw.py              # about ten minutes on one core; writes results/redraw.json

Three networks, three seeds, three limits on MACs; loss differences before tuning, on the training images that the
search saw. The paper's search of 400 candidates (`redraw=0`) judges fewer networks than that, because many candidates
select the same one. Beside it: searches that draw up to 3 and up to 10 times again, with as many candidates, and one
with only as many candidates as the paper's search judged networks (`same`).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import digit_networks
import torch

import lcprune
from lcprune.files import write_json

LIMITS = (0.7, 0.5, 0.3)
NETWORKS = ("plain", "residual", "separable")
OUT = Path(__file__).parent / "results" / "redraw.json"
CANDIDATES = 400


def measure(name: str, seed: int, images: int) -> list[dict[str, Any]]:
    """All searches of one network."""
    train, labels, *_ = digit_networks.digits()
    torch.manual_seed(seed)
    model = digit_networks.train(digit_networks.NETWORKS[name](), train, labels, epochs=20, seed=seed).eval()
    graph, data = lcprune.trace(model, train[:2]), digit_networks.batches(train, labels, 64)

    def find(macs: float, redraw: int, candidates: int) -> dict[str, Any]:
        pool = max(2, round(candidates * 64 / CANDIDATES))
        sample = max(1, round(pool / 4))
        method = lcprune.LcP(lcprune.Search(pool, candidates - pool, sample, redraw=redraw))
        evaluation = lcprune.Evaluation(data, images=images, recalibrate=False)
        found = lcprune.prune(graph, macs=macs, method=method, data=evaluation, seed=seed, progress=False)
        networks = len({tuple(record.counts) for record in found.history})
        meta = found.plan.meta
        return {
            "redraw": redraw,
            "candidates": candidates,
            "networks": networks,
            "difference": meta["difference"],
            "naive": meta["naive_difference"],
        }

    rows = []
    for macs in LIMITS:
        off = find(macs, 0, CANDIDATES)
        found = {"off": off, "three": find(macs, 3, CANDIDATES), "ten": find(macs, 10, CANDIDATES)}
        found["same"] = find(macs, 10, off["networks"])
        rows.append({"network": name, "seed": seed, "macs": macs, **found})
        print(name, seed, macs, {way: (one["difference"], one["networks"]) for way, one in found.items()}, flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Per way: median difference over that of the paper's search, how often it is lower and higher, networks judged."""
    found = {}
    for way in ("three", "ten", "same"):
        ratios = [row[way]["difference"] / max(row["off"]["difference"], 1e-9) for row in rows]
        found[way] = {
            "median": statistics.median(ratios),
            "better": sum(ratio < 1 for ratio in ratios),
            "worse": sum(ratio > 1 for ratio in ratios),
            "networks": statistics.mean(row[way]["networks"] for row in rows),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name in options.networks:
            rows += measure(name, seed, options.images)
            record = {"what": "finds of searches that draw again", "images": options.images, "rows": rows}
            write_json(options.out, {**record, "summary": summary(rows)}, indent=1)
    print(summary(rows))


if __name__ == "__main__":
    main()
