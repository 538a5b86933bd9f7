"""What more workers bring: measured with one and two, simulated up to 256, and what asking together costs the search.

    python benchmarks/scale.py                  # about four minutes on two cores; needs lcprune[ray]
    python benchmarks/scale.py --page           # measure nothing: simulate again, renew docs/scale.md

Four parts, each one entry of `benchmarks/results/scale.json`:

    measured    one search by this process, by one worker and by two, of one core each
    overhead    a search whose candidates cost next to nothing: what a worker adds to each, and what the process that
                leads the search spends on each
    simulated   a search of ResNet-50 on ImageNet: the loop's own rules with times from the parts above and from
                `benchmarks/results/search-cuda.json`; see `scale_simulation.py`
    quality     the digits, 400 candidates, asked for W at a time: what the search finds

Whoever has a cluster can replace assumptions by `--seconds-per-candidate`, `--bandwidth` and `--gpus-per-machine`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import digit_networks
import numpy as np
import torch
from scale_simulation import RESULTS, Assumptions, candidate_seconds, curve, wide
from scale_tables import renewed

import lcprune
from lcprune import Search, models
from lcprune.engine import RayEngine
from lcprune.files import atomic_write, write_json
from lcprune.search import Space, make_sampler
from lcprune.select import Limits, Ranking

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"


def measure(candidates: int, images: int) -> dict[str, Any]:
    """Seconds of one search, by this process and by workers."""
    torch.manual_seed(0)
    model, example = models.build("resnet20", num_classes=10).eval(), models.example_input("resnet20")
    data = [(torch.randn(images, *example.shape[1:]), torch.randint(10, (images,)))]
    graph = lcprune.trace(model, example)
    pool = candidates // 4
    method = lcprune.LcP(Search(pool=pool, iterations=candidates - pool, together=2))
    evaluation = lcprune.Evaluation(data, images=images, after="cut")

    def seconds(engine: Any) -> tuple[float, float, float]:
        began = time.perf_counter()
        run = lcprune.Job(engine=engine)
        result = lcprune.prune(graph, macs=0.5, method=method, data=evaluation, run=run, repair="none", progress=False)
        whole = time.perf_counter() - began
        steps = np.diff([0.0, *(record.seconds for record in result.history if not record.cached)])
        return result.history[-1].seconds, whole, float(steps.std() / steps.mean())

    local, _, variation = seconds("local")
    found: dict[str, Any] = {"network": "resnet20", "candidates": candidates, "images": images, "local_s": local}
    for workers in (1, 2):
        began = time.perf_counter()
        with RayEngine("local", workers=workers) as engine:
            seconds(engine)  # workers start, import and warm up
            found[f"start_{workers}_s"] = time.perf_counter() - began
            found[f"workers_{workers}_s"] = min(seconds(engine)[0] for _ in range(2))
            found[f"start_{workers}_s"] -= found[f"workers_{workers}_s"]
    found["variation"] = variation
    found["speed_up"] = found["workers_1_s"] / found["workers_2_s"]
    return found


def overhead(candidates: int) -> dict[str, Any]:
    """Seconds per candidate, where judging costs next to nothing; set-up is left out by comparing two lengths."""
    images, labels, *_ = digit_networks.digits()
    model = digit_networks.plain(width=32).eval()
    graph = lcprune.trace(model, images[:1])
    evaluation = lcprune.Evaluation([(images[:1], labels[:1])], images=1, after="cut")

    def spent(engine: Any, total: int) -> np.ndarray:
        """Candidates, seconds of the search, and seconds that this process was busy."""
        method, run = lcprune.LcP(Search(pool=50, iterations=total - 50)), lcprune.Job(engine=engine)
        busy = time.process_time()
        history = lcprune.prune(
            graph, macs=0.5, method=method, data=evaluation, run=run, repair="none", progress=False
        ).history
        busy = time.process_time() - busy
        return np.array([len(history), history[-1].seconds, busy])

    def per_candidate(engine: Any) -> tuple[float, float]:
        spent(engine, 60)
        told, seconds, busy = (spent(engine, 60 + candidates) - spent(engine, 60)).tolist()
        return seconds / told, busy / told

    local, _ = per_candidate("local")
    with RayEngine("local", workers=1) as engine:
        there, lead = per_candidate(engine)
    return {
        "candidates": candidates,
        "local_ms": 1e3 * local,
        "worker_ms": 1e3 * there,
        "added_ms": 1e3 * (there - local),
        "lead_ms": 1e3 * lead,
    }


def resnet50() -> dict[str, Any]:
    """What a search of ResNet-50 costs the leading process, and what has to travel."""
    from ray import cloudpickle

    model, example = models.build("torchvision:resnet50").eval(), models.example_input("torchvision:resnet50")
    graph = lcprune.trace(model, example)
    rng = np.random.default_rng(0)
    scores = [rng.random(size) for size in graph.cost.sizes]
    ranking = Ranking(scores, graph.cost, 0.1, 1)
    sampler = make_sampler(Space.of(scores), Search(), 0)
    began = time.perf_counter()
    for _ in range(100):
        beta = sampler.ask()
        ranking.select(Limits(macs=0.5), beta=beta)
        sampler.tell(beta, float(rng.random()))
    planning = (time.perf_counter() - began) / 100
    images = lcprune.Evaluation().images * math.prod(example.shape[1:]) * 4
    return {"planning_ms": 1e3 * planning, "graph_bytes": len(cloudpickle.dumps(graph)), "image_bytes": images}


def quality(seeds: int, images: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """The best difference that 400 candidates find on the digits, asked for W at a time."""
    pictures, labels, *_ = digit_networks.digits()
    torch.manual_seed(0)
    model = digit_networks.residual(width=16)
    digit_networks.train(model, pictures, labels, epochs=10, seed=0)
    graph = lcprune.trace(model.eval(), pictures[:2])
    evaluation = lcprune.Evaluation(digit_networks.batches(pictures, labels, 64), images=images, after="cut")
    rows = []
    for workers in numbers:
        kinds = {"together": Search(), "asynchronous": Search(asynchronous=True)}
        if workers == 1:
            kinds = {"together": Search(), "random": Search(algorithm="random")}
        if workers > Search().pool:
            kinds["wide"] = wide(Search(), workers)
        for kind, search in kinds.items():
            best, naive = [], []
            for seed in range(seeds):
                method = lcprune.LcP(replace(search, together=workers))
                found = lcprune.prune(
                    graph, macs=0.5, method=method, data=evaluation, seed=seed, repair="none", progress=False
                )
                meta = found.plan.meta
                best.append(meta["difference"])
                naive.append(meta["naive_difference"])
            rows.append({"workers": workers, "kind": kind, "pool": search.pool, "best": best, "naive": naive})
            print(f"  W={workers} {kind}: {statistics.mean(best):.4f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=80, help="of the searches that are timed")
    parser.add_argument("--images", type=int, default=96, help="that each of their candidates is judged on")
    parser.add_argument("--seeds", type=int, default=6, help="of the searches whose finds are compared")
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 8, 64, 256], help="asked for together there")
    parser.add_argument("--seconds-per-candidate", type=float, help="of ResNet-50 on one GPU")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes per second between machines")
    parser.add_argument("--gpus-per-machine", type=int, default=8)
    parser.add_argument("--page", action="store_true", help="measure nothing: simulate again, renew docs/scale.md")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    args = parser.parse_args()
    record = json.loads(args.out.read_text(encoding="utf-8")) if args.page else measure_all(args)
    write_json(args.out, derive(record, args), indent=1)
    record = json.loads(args.out.read_text(encoding="utf-8"))
    page = renewed(PAGE.read_text(encoding="utf-8"), record)
    with atomic_write(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")


def measure_all(args: argparse.Namespace) -> dict[str, Any]:
    """What is measured."""
    torch.set_num_threads(1)  # two workers have one core each, and so has this process
    began = time.perf_counter()
    print("one and two workers", flush=True)
    record = {
        "what": "speed-up and finds of a search with workers",
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "measured": measure(args.candidates, args.images),
        "overhead": overhead(400),
        "resnet50": resnet50(),
    }
    print("what is found", flush=True)
    record["quality"] = quality(args.seeds, 200, args.numbers)
    return {**record, "seconds": time.perf_counter() - began}


def derive(record: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """What follows from it."""
    measured, small, large = record["measured"], record["overhead"], record["resnet50"]
    each, source = candidate_seconds()
    if args.seconds_per_candidate is not None:
        each, source = args.seconds_per_candidate, "given"
    given = Assumptions(
        seconds_per_candidate=each,
        source=source,
        variation=measured["variation"],
        lead_seconds=(small["lead_ms"] + large["planning_ms"]) / 1e3,
        way_seconds=max(0.0, small["added_ms"]) / 1e3,
        start_seconds=measured["start_1_s"],
        case_bytes=large["graph_bytes"] + large["image_bytes"],
        bandwidth=args.bandwidth,
        gpus_per_machine=args.gpus_per_machine,
    )
    return {**record, "assumptions": asdict(given), "simulated": curve(given, Search())}


if __name__ == "__main__":
    main()
