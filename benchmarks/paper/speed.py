"""How many fine-tunings at once are fastest on one GPU, and in which precision and memory layout.

    python benchmarks/paper/speed.py --data cifar10:PATH --out FILE.json    # about 75 s

Every process tunes the same half-sized ResNet-56 (naive, odd widths and all) as a captured graph, or several of them as
a fleet. In each round the first processes run for some seconds while the others wait. Every kind of step is tried
alone, the fastest one then with several processes and fleets.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
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
    from lcprune.tune.distributed import World
    from lcprune.tune.fit import one_network
    from lcprune.tune.fleet.run import Fleet
    from lcprune.tune.training import Training
    from paper.scale import PAPER, TINY
    from paper.work import Bench

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    scale = TINY if options.tiny else PAPER
    bench = Bench(options.data, Path(), scale, options.device)
    full, graph = bench.network(scale.network), bench.graph(scale.network)
    plan = lcprune.prune(graph, macs=0.5, method="naive", progress=False).plan
    for kind, count in iter(orders.get, None):
        recipe = tune.recipe("finetune", **KINDS[kind])
        runs = [Training(plan.apply(full), bench.dataset, replace(recipe, seed=seed)) for seed in range(count)]
        if count == 1:
            made = one_network(runs[0], None, World(0, 1, bench.device), workers=0)
        else:
            made = nullcontext(Fleet(full, [plan] * count, runs, None, bench.device))
        with made as loop:
            answers.put(None)
            orders.get()  # all are ready
            steps, started = 0, time.perf_counter()
            while time.perf_counter() - started < options.seconds:
                loop.stepper.start(0, 0)
                for position in range(min(20, loop.feed.steps)):
                    loop.stepper.step(position)
                    steps += count
                loop.stepper.losses[:1].cpu()
            answers.put(steps * loop.images_per_step / (time.perf_counter() - started))
        del runs, made, loop
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    mixes = ["9x1", "1x9", "1x18", "1x36"]
    parser.add_argument("--mixes", nargs="+", default=mixes, help="processes x networks in each one's fleet")
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

    def measure(kind: str, jobs: int, fleet: int) -> None:
        for order in ((kind, fleet), "go"):
            for queue in orders[:jobs]:
                queue.put(order)
            found = [answers.get(timeout=120) for _ in range(jobs)]
        rows.append({"kind": kind, "jobs": jobs, "fleet": fleet, "images_per_second": sum(found)})
        print(f"{time.time() - began:.0f} s: {kind}, {jobs} x {fleet}: {sum(found):,.0f} images/s", flush=True)

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
