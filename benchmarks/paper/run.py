"""Run the cells of the paper's tables and figures, several at once, for as many minutes as there are.

    python benchmarks/paper/run.py --data cifar10:PATH --out runs/paper --jobs 8 --minutes 9
    python benchmarks/paper/run.py --data cifar10:PATH --out runs/paper --show table-1      # what one table needs
    python benchmarks/paper/run.py --data cifar10:PATH --out runs/paper --only 'resnet56/tune/*-50/*'
    python benchmarks/paper/run.py --data digits --out runs/tiny --tiny                     # the whole way in seconds
    python benchmarks/paper/run.py --out runs/paper --list                                  # what is done, what is not

Cells that are missing run in order of value: searches several at once in worker processes (`--jobs`), tunings one
fleet at a time, `--fleet` cells of one network and recipe (`lcprune.tune.fit_fleet`). Tunings that can be no
fleet run side by side in the workers. When the time is over, every tuning under way leaves a checkpoint; the same
command goes on. `--pack FOLDER` writes what this run made into tar files of at most 15 MB each; unpacked over the same
`--out` elsewhere, they carry on there. On a GPU, workers share it through NVIDIA's MPS where it can be started.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

from paper.cells import DONE, Cell, chosen, registry  # noqa: E402
from paper.fleets import AGAIN, ALONE, key_of  # noqa: E402
from paper.pack import pack  # noqa: E402
from paper.scale import PAPER, TINY  # noqa: E402
from paper.workers import Mps, Worker  # noqa: E402

# A cell that leaves nothing behind when it is stopped is not begun with less time than it usually takes on a GPU, and
# a tuning not with less than it takes to begin.
LEAST_SECONDS = {"objective": 90.0, "metric": 20.0, "frontier": 12.0, "method": 15.0, "tune": 45.0, "train": 10.0}
GOOD = ("done", "stopped", AGAIN, ALONE)


LIGHT = ("frontier", "method", "metric")  # no tuning of their own, and tunings need them


class Queue:
    """Cells still to be done, handed out in order as soon as what they need is done; tunings in fleets.

    Args:
        cells: all of them, the most valuable first.
        out: their folders.
        deadline: as `time.time` counts.
        least: seconds that must be left for a kind of cell to be begun.
        fleet: most cells that are tuned together; 1 for each by itself, as many at once as there are workers.
    """

    def __init__(self, cells: list[Cell], out: Path, deadline: float, least: dict[str, float], fleet: int = 1) -> None:
        self.out, self.deadline, self.least, self.fleet = out, deadline, least, fleet
        self.rank = {cell.name: number for number, cell in enumerate(cells)}
        self.waiting = [cell for cell in cells if not self.done(cell.name)]
        self.running: dict[str, Cell] = {}
        self.together: set[str] = set()  # those of the running fleet
        self.alone: set[str] = set()  # those that can be in none
        self.outcome: dict[str, str] = {}
        self.changed = threading.Condition()

    def done(self, name: str) -> bool:
        return (self.out / name / DONE).is_file()

    def take(self) -> list[Cell]:
        """The next cell or fleet; waits while running cells may make one ready. Empty when there is no more to do."""
        with self.changed:
            while True:
                left = self.deadline - time.time()
                ready = [cell for cell in self.waiting if all(map(self.done, cell.needs))]
                taken = self._next([cell for cell in ready if self.least.get(cell.kind, 0.0) < left])
                if taken:
                    for cell in taken:
                        self.waiting.remove(cell)
                        self.running[cell.name] = cell
                    return taken
                if left <= 0 or not self.running or not self.waiting:
                    return []
                self.changed.wait(timeout=1.0)

    def _next(self, ready: list[Cell]) -> list[Cell]:
        if self.fleet == 1 or not ready or ready[0].kind in LIGHT:
            return ready[:1]
        head = ready[0]
        # One fleet at a time, and not before the searches whose networks it should have; others may run beside it.
        sought = any(
            cell.kind in LIGHT and self.rank[name] < self.rank[head.name] for name, cell in self.running.items()
        )
        if self.together or sought:
            return [cell for cell in ready if cell.kind in LIGHT][:1]
        key = None if head.name in self.alone else key_of(head, self.out)
        if key is None:
            return [head]
        same = [cell for cell in ready if cell.name not in self.alone and key_of(cell, self.out) == key]
        self.together = {cell.name for cell in same[: self.fleet]}
        return same[: self.fleet]

    def finish(self, cells: list[Cell], outcomes: dict[str, str]) -> None:
        """Say how cells ended: as `fleets.do` says it."""
        with self.changed:
            for cell in cells:
                del self.running[cell.name]
                outcome = self.outcome[cell.name] = outcomes[cell.name]
                if outcome in (AGAIN, ALONE):
                    self.waiting.append(cell)
                if outcome == ALONE:
                    self.alone.add(cell.name)
                self.together.discard(cell.name)
            self.waiting.sort(key=lambda cell: self.rank[cell.name])
            self.changed.notify_all()


def serve(worker: Worker, queue: Queue) -> None:
    """Feed a worker until the queue is empty, the time is over or the worker is lost."""
    failed = 0
    # After an error of the device nothing works in a process any more: two in a row and it gets no more cells.
    while worker.alive and failed < 2 and (cells := queue.take()):
        started = time.time()
        outcomes = worker.ask([cell.name for cell in cells], queue.deadline)
        queue.finish(cells, outcomes)
        failed = 0 if any(outcome in GOOD for outcome in outcomes.values()) else failed + 1
        for cell in cells:
            together = f", {len(cells)} together" if len(cells) > 1 else ""
            print(f"{outcomes[cell.name]:>8} {cell.name} ({time.time() - started:.0f} s{together})", flush=True)


def status(queue: Queue, began: float) -> str:
    """One line: what is done, what runs, how fast."""
    rate, epochs = 0.0, []
    for name in list(queue.running):
        file = queue.out / name / "tuning" / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if lines:
            last = json.loads(lines[-1])
            rate += last["images_per_second"]
            epochs.append(last["epoch"])
    finished = sum(outcome == "done" for outcome in queue.outcome.values())
    return (
        f"{time.time() - began:4.0f} s: {finished} cells done, {len(queue.running)} running, "
        f"{len(queue.waiting)} to come; {len(epochs)} tunings at epochs {sorted(epochs)}, {rate:,.0f} images/s"
    )


def main() -> None:
    options = arguments()
    began = options.began
    scale = TINY if options.tiny else PAPER
    cells = chosen(registry(scale), options.only, options.show)
    if not cells:
        sys.exit("no cell matches: see --list")
    if options.list:
        for cell in cells:
            print(f"{'done' if (options.out / cell.name / DONE).is_file() else 'missing':8} {cell.kind:10} {cell.name}")
        return
    if options.data is None:
        sys.exit("name the data, e.g. --data cifar10:PATH")
    if options.speed is not None:
        follow(options)
    deadline = math.inf if options.minutes is None else began + 60 * options.minutes
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    least = LEAST_SECONDS if options.device.startswith("cuda") else {}
    queue = Queue(cells, out, deadline, least, options.fleet)
    print(f"{len(queue.waiting)} of {len(cells)} cells to do", flush=True)

    mps = Mps(out / "mps") if options.mps and options.device.startswith("cuda") else None
    jobs = min(options.jobs, max(1, len(queue.waiting)))
    words = [
        "--data",
        options.data,
        "--out",
        str(out),
        "--device",
        options.device,
        *(["--tiny"] if options.tiny else []),
    ]
    words += ["--precision", options.precision, *(["--channels-first"] if options.channels_first else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **(mps.environment if mps else {})}
    workers = [Worker(words, out / f"worker-{number}.log", environment) for number in range(jobs)]
    threads = [threading.Thread(target=serve, args=(worker, queue), daemon=True) for worker in workers]

    def stop(*_: object) -> None:
        queue.deadline = 0.0
        for worker in workers:
            worker.interrupt()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    for thread in threads:
        thread.start()
    shown, interrupted = time.time(), 0.0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        now = time.time()
        if now - shown > 20:
            shown = now
            print(status(queue, began), flush=True)
        # Tunings see to the time themselves; a search is interrupted, its records are all it needs to go on.
        if now > queue.deadline + 5 and not interrupted:
            interrupted = now
            stop()
        if interrupted and now > interrupted + 20:
            for worker in workers:
                worker.kill()
    for worker in workers:
        worker.close()
    if mps:
        mps.quit()
    wrong = {name: outcome for name, outcome in queue.outcome.items() if outcome not in GOOD}
    print(status(queue, began), flush=True)
    if options.pack:
        for line in pack(out, options.pack, began):
            print(line, flush=True)
    if wrong:
        sys.exit("\n".join(f"{name}: {outcome}" for name, outcome in wrong.items()))


def follow(options: argparse.Namespace) -> None:
    """Take the kind of step and the size of fleets that `speed.py` found to be the fastest."""
    record = json.loads(options.speed.read_text(encoding="utf-8"))
    rows = [row for row in record["rows"] if row["kind"] == record["best"] and row["jobs"] == 1]
    most = max(row["images_per_second"] for row in rows)
    options.fleet = min(row["fleet"] for row in rows if row["images_per_second"] > 0.97 * most)
    options.precision = "bf16" if record["best"].startswith("bf16") else "fp32"
    options.channels_first = record["best"].endswith("first")
    print(f"fleets of {options.fleet}, {record['best']}: {most:,.0f} images/s in {options.speed}", flush=True)
    if most < options.at_least:
        sys.exit(f"that is less than {options.at_least:,.0f} images/s: nothing is run")


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="e.g. cifar10:PATH")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells")
    parser.add_argument("--only", nargs="+", default=[], help="patterns of names, e.g. 'resnet56/tune/*'")
    parser.add_argument(
        "--show", nargs="+", default=[], help="what a table or figure needs: table-1, figure-3, best ..."
    )
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--fleet", type=int, help="tunings at once as one network: 18 on a GPU, 1 elsewhere")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--pack", type=Path, help="write what this run made as tar files into this folder")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on digits, to try the whole way")
    parser.add_argument("--list", action="store_true", help="say what is done and what is missing")
    parser.add_argument("--speed", type=Path, help="record of speed.py: take fleet, precision and layout from it")
    parser.add_argument("--at-least", type=float, default=0.0, help="images/s in that record, or nothing is run")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"], help="of tuning on a GPU")
    parser.add_argument("--channels-first", action="store_true", help="memory layout of tuning")
    parser.add_argument("--no-mps", dest="mps", action="store_false", help="do not start NVIDIA's MPS")
    parser.add_argument("--device", default=None)
    parser.add_argument("--began", type=float, default=time.time(), help="when the minutes began to count")
    options = parser.parse_args()
    if options.device is None and not options.list:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.fleet is None:
        options.fleet = 18 if (options.device or "").startswith("cuda") else 1
    return options


if __name__ == "__main__":
    main()
