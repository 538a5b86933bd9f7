"""How many fine-tunings at once are fastest on one GPU, and in which precision and memory layout.

    python benchmarks/paper/speed.py --data cifar10:PATH --out FILE.json    # about 75 s

Every process tunes the same half-sized ResNet-56 (naive, odd widths and all) as a captured graph, on one or several
streams ("lanes"). In each round the first processes run for some seconds while the others wait. Every kind of step is
tried alone, the fastest one then with several processes and lanes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

from paper.workers import Mps  # noqa: E402

KINDS = {
    "bf16, channels last": {"precision": "bf16", "channels_last": True},
    "bf16, channels first": {"precision": "bf16", "channels_last": False},
    "tf32, channels first": {"precision": "fp32", "channels_last": False},
}


def process(options: argparse.Namespace, orders: Any, answers: Any) -> None:
    """Prepare steps when told to, run them for some seconds when told to."""
    import torch

    import lcprune
    from lcprune import tune
    from lcprune.tune.distributed import join
    from lcprune.tune.run import Run
    from paper.cells import PAPER, TINY
    from paper.turns import Lane
    from paper.work import Bench

    torch.set_num_threads(1)
    scale = TINY if options.tiny else PAPER
    bench = Bench(options.data, Path(), scale, options.device)
    graph = bench.graph(scale.network)
    cut = lcprune.prune(
        bench.network(scale.network),
        bench.example(scale.network),
        macs=0.5,
        method="naive",
        graph=graph,
        progress=False,
    )
    lanes: list[tuple[Any, Any]] = []
    prepared = ""
    for kind, count in iter(orders.get, None):
        if kind != prepared:
            lanes, prepared = [], kind
        while len(lanes) < count:
            recipe = tune.recipe("finetune", **KINDS[kind])
            lane = Lane(bench.device)
            run = Run(cut.plan.apply(graph.model), bench.dataset, recipe, None, None, join(bench.device), 0)
            lane.prepare(run, False)
            lanes.append((lane, run))
        answers.put(None)
        orders.get()  # all are ready
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < options.seconds:
            for lane, run in lanes[:count]:
                with lane():
                    run.stepper.start(0, 0)
            for position in range(min(100, run.feed.steps)):
                for lane, run in lanes[:count]:
                    with lane():
                        run.stepper.step(position)
                steps += count
            for lane, _ in lanes[:count]:
                lane.finish()
        answers.put(steps * run.images_per_step / (time.perf_counter() - started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    mixes = ["1x4", "1x8", "4x2", "8x1", "14x1"]
    parser.add_argument("--mixes", nargs="+", default=mixes, help="processes x lanes")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    began = time.time()
    on_gpu = options.device.startswith("cuda")
    mps = Mps(Path("/tmp") / f"mps-{os.getpid()}") if on_gpu else None
    os.environ.update({"OMP_NUM_THREADS": "1", **(mps.environment if mps else {})})
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    orders = [context.Queue() for _ in range(max(int(mix.split("x")[0]) for mix in options.mixes))]
    children = [context.Process(target=process, args=(options, q, answers), daemon=True) for q in orders]
    for child in children:
        child.start()
    rows: list[dict[str, Any]] = []

    def measure(kind: str, jobs: int, lanes: int) -> None:
        for order in ((kind, lanes), "go"):
            for queue in orders[:jobs]:
                queue.put(order)
            found = [answers.get(timeout=120) for _ in range(jobs)]
        rows.append({"kind": kind, "jobs": jobs, "lanes": lanes, "images_per_second": sum(found)})
        print(f"{time.time() - began:.0f} s: {kind}, {jobs} x {lanes}: {sum(found):,.0f} images/s", flush=True)

    for kind in KINDS:
        measure(kind, 1, 1)
    best = max(rows, key=lambda row: row["images_per_second"])["kind"]
    for mix in options.mixes:
        measure(best, *map(int, mix.split("x")))
    for queue in orders:
        queue.put(None)
    for child in children:
        child.join(timeout=30)
    if mps:
        mps.quit()

    import torch

    from lcprune.files import write_json

    machine = torch.cuda.get_device_name() if on_gpu else "cpu"
    record = {"what": "tunings of a half-sized ResNet-56 at once, batch 128", "machine": machine, "best": best}
    write_json(options.out, {**record, "torch": torch.__version__, "mps": bool(mps and mps.environment), "rows": rows})


if __name__ == "__main__":
    main()
