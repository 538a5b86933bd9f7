"""How many fine-tunings at once are fastest on one GPU, and in which precision and memory layout.

    python benchmarks/paper/speed.py --data cifar10:PATH --jobs 1 8 14 --seconds 3 --out FILE.json    # about 75 s

Every process tunes the same half-sized ResNet-56 (naive, odd widths and all) as a captured graph; in each round the
first N of them run for some seconds while the others wait. Every kind of step is tried alone and with the second
largest number of processes, the fastest one then with all numbers.
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
    "tf32, channels last": {"precision": "fp32", "channels_last": True},
}


def process(number: int, options: argparse.Namespace, orders: Any, answers: Any) -> None:
    """Prepare a step when told to, run it for some seconds when told to."""
    import torch

    import lcprune
    from lcprune import tune
    from lcprune.tune.distributed import join
    from lcprune.tune.run import Run
    from paper.cells import PAPER, TINY
    from paper.work import Bench

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
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
    training: Any = None
    for order in iter(orders.get, None):
        if order[0] == "prepare":
            if training is not None:
                training.restore()
            recipe = tune.recipe("finetune", **KINDS[order[1]])
            training = Run(cut.plan.apply(graph.model), bench.dataset, recipe, None, None, join(bench.device), 0)
            training.prepare(False)
            answers.put((number, 0, 0.0))
            continue
        steps, position, started = 0, 0, time.perf_counter()
        training.stepper.start(0, 0)
        while time.perf_counter() - started < options.seconds:
            for _ in range(min(20, training.feed.steps - position)):
                training.stepper.step(position)
                position, steps = position + 1, steps + 1
            if position == training.feed.steps:
                training.stepper.start(0, 0)
                position = 0
            training.stepper.losses[:1].cpu()  # waits for the device
        answers.put((number, steps * training.images_per_step, time.perf_counter() - started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 8, 14])
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
    orders = [context.Queue() for _ in range(max(options.jobs))]
    children = [
        context.Process(target=process, args=(n, options, q, answers), daemon=True) for n, q in enumerate(orders)
    ]
    for child in children:
        child.start()
    rows: list[dict[str, Any]] = []

    ready = [""] * len(orders)

    def measure(kind: str, jobs: int) -> None:
        late = [number for number in range(jobs) if ready[number] != kind]
        for number in late:
            orders[number].put(("prepare", kind))
            ready[number] = kind
        for _ in late:
            answers.get(timeout=120)
        for queue in orders[:jobs]:
            queue.put(("run",))
        found = [answers.get(timeout=60) for _ in range(jobs)]
        rate = sum(images / seconds for _, images, seconds in found)
        rows.append({"kind": kind, "jobs": jobs, "images_per_second": rate})
        print(f"{time.time() - began:.0f} s: {kind}, {jobs} at once: {rate:,.0f} images/s", flush=True)

    numbers = sorted(options.jobs)
    some = [numbers[0], *numbers[-2:-1]]
    for kind in KINDS:
        for jobs in dict.fromkeys(some):
            measure(kind, jobs)
    best = max(rows, key=lambda row: row["images_per_second"])["kind"]
    for jobs in numbers:
        if jobs not in some:
            measure(best, jobs)
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
