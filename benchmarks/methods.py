"""All methods at the same limit, and how long AMC and LcP search.

    python benchmarks/methods.py                                  # digits: every method, 50 % MACs, three seeds
    python benchmarks/methods.py --table                          # only write the table of docs/methods.md anew
    python benchmarks/methods.py --gpu --data cifar10:PATH --weights resnet56.safetensors
    python benchmarks/methods.py --search --candidates 60 --images 200   # the same comparison of searches on a CPU

The first is one `lcprune train` and one `lcprune compare`; what the run folder records goes to
benchmarks/results/methods.json and, as a table, into docs/methods.md. `--gpu` times both searches with the same
number of candidates (400), the same images (3,000) and the same evaluator, one after the other in one process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import lcprune
from lcprune import data, methods, models
from lcprune.evaluate import draw
from lcprune.files import atomic_write, write_json
from lcprune.runs import Run
from lcprune.select import Limits
from lcprune.task import Task

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
START, END = "<!-- table: digits -->\n", "<!-- end -->"

ORDER = [
    *("uniform", "l1_schedule", "soft", "channel_lasso", "thinet"),  # the same share everywhere, or a schedule by hand
    *("naive", "slimming", "single_filter", "single_filter_fisher"),  # one ranking of the whole network
    *("morphnet", "amc", "lcp"),  # widths that are searched for
]
PUBLISHED = {
    "l1_schedule": "93.04 → 93.06 at 72.4 %",
    "soft": "93.59 → 93.35 at 47.4 %",
    "channel_lasso": "92.8 → 91.8 at 50 %",
    "amc": "92.8 → 91.9 at 50 %",
    "naive": "94.18 → 93.37 at 50 %",
    "lcp": "94.18 → 93.41 at 50 %",
    "single_filter": "94.18 → 93.21 at 72.4 % (LcP paper)",
    "morphnet": "94.18 → 93.51 at 62 % (LcP paper)",
}
TRAINING = ["tune.batch_size=64", "tune.schedule=cosine"]
# An epoch of digits is 40 steps of 32 images; everything else is the methods' default.
SETTINGS = [
    *TRAINING,
    "tune.lr=0.02",
    "search.images=600",
    "soft.batch_size=32",
    "slimming.batch_size=32",
    "morphnet.batch_size=32",
    "single_filter.tune_steps=10",
    "single_filter.images=128",
    "single_filter_fisher.tune_steps=10",
    "single_filter_fisher.images=128",
]


def digits(options: argparse.Namespace) -> None:
    """Train a network, compare all methods, keep what was recorded."""
    folder: Path = options.out or Path("runs") / "methods"
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    if not (folder / "train" / "model.safetensors").exists():
        plain = [word for setting in TRAINING for word in ("--set", setting)]
        _lcprune("train", "digits_resnet", "--data", "digits", "--epochs", "30", "--out", folder / "train", *plain)
    going_on = ["--resume"] if (folder / "compare").exists() else []
    _lcprune(
        *("compare", folder / "train", "--macs", "50%", "--seeds", options.seeds, "--epochs", options.epochs),
        *("--methods", ",".join(options.methods), "--out", folder / "compare", "--device", "cpu", *sets, *going_on),
    )
    run = Run.open(folder / "compare")
    rows = run.records("results")
    for row in rows:
        for plan in (folder / "compare" / "networks").glob("*/plan.json") if row["method"] == "morphnet" else ():
            meta = json.loads(plan.read_text(encoding="utf-8"))["meta"]
            if (meta["method"], meta["seed"]) == ("morphnet", row["seed"]):
                row["trainings"] = meta["trainings"]
    results = {
        "what": "every method at 50 % of the MACs of a small residual network on digits",
        "settings": {"seeds": options.seeds, "epochs": options.epochs, "set": SETTINGS},
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
    }
    write_json(RESULTS / "methods.json", results)
    write_table(results)


def write_table(results: dict[str, Any]) -> None:
    """Put the results into docs/methods.md, between its marks."""
    original = next(row for row in results["rows"] if row["method"] == "original")
    lines = [
        "| method | MACs | parameters | before tuning | after tuning | choosing | published, ResNet-56 on CIFAR-10 |",
        "|---|---|---|---|---|---|---|",
        f"| the network | 100 % | 100 % | | {original['accuracy']:.2%} | | |".replace("%", " %").replace("  ", " "),
    ]
    for method in ORDER:
        rows = [row for row in results["rows"] if row["method"] == method]
        if not rows:
            continue
        trainings = {row["trainings"] for row in rows if "trainings" in row}
        price = f", {min(trainings)} to {max(trainings)} trainings" if trainings else ""
        cells = [
            f"`{method}`",
            f"{100 * statistics.mean(row['macs_share'] for row in rows):.1f} %",
            f"{100 * statistics.mean(row['params_share'] for row in rows):.1f} %",
            _spread([100 * row["accuracy_before"] for row in rows]),
            _spread([100 * row["accuracy"] for row in rows]),
            f"{statistics.mean(row['search_seconds'] for row in rows):.1f} s{price}",
            PUBLISHED.get(method, ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    with atomic_write(PAGE) as path:
        path.write_text(before + START + "\n" + "\n".join(lines) + "\n\n" + END + after, encoding="utf-8")
    print("\n".join(lines))


def searches(options: argparse.Namespace) -> None:
    """Time LcP's search and AMC's, everything else being equal."""
    device = options.device
    torch.manual_seed(0)
    model = models.build(options.network, num_classes=10, weights=options.weights).eval().to(device)
    example = models.example_input(options.network).to(device)
    graph = lcprune.trace(model, example)
    if options.data:
        batches = data.load(options.data, seed=0).batches("train", 500, limit=options.images, seed=0)
    else:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(options.images, *example.shape[1:], generator=generator)
        batches = [(inputs, torch.randint(10, (options.images,), generator=generator))]
    samples = draw(batches, options.images, 0)

    def task(method: str, candidates: int) -> Task:
        pool = max(1, candidates * 64 // 400)
        search = lcprune.Search(pool=pool, iterations=candidates - pool, images=options.images)
        own = {"episodes": candidates, "warmup": candidates // 4} if method == "amc" else None
        chosen = methods.get(method).read_options(own)
        return Task(graph, Limits(macs=0.5), samples=samples, search=search, options=chosen)

    found: dict[str, Any] = {}
    for method in ("lcp", "amc"):
        methods.get(method).function(task(method, 8))  # libraries load, kernels are chosen
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        choice = methods.get(method).function(task(method, options.candidates))
        seconds = time.perf_counter() - started
        found[method] = {"seconds": seconds, "parts": choice.seconds, "evaluations": choice.meta["evaluations"]}
        parts = ", ".join(f"{name} {value:.2f}" for name, value in choice.seconds.items())
        print(f"{method}: {seconds:.2f} s for {options.candidates} candidates ({parts})", flush=True)
    ratio = found["amc"]["seconds"] / found["lcp"]["seconds"]
    print(f"AMC takes {ratio:.2f} times as long as LcP (the paper says 8)")
    results = {
        "what": "time of the AMC search and of the LcP search, same candidates, images and evaluator",
        "network": options.network,
        "candidates": options.candidates,
        "images": options.images,
        "data": options.data or "random",
        "machine": torch.cuda.get_device_name() if torch.device(device).type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        **found,
        "ratio": ratio,
    }
    write_json(options.out or RESULTS / f"methods-search-{torch.device(device).type}.json", results)


def _lcprune(*words: Any) -> None:
    subprocess.run([sys.executable, "-m", "lcprune", *map(str, words)], check=True)


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", "--search", action="store_true", dest="search", help="time AMC against LcP")
    parser.add_argument("--table", action="store_true", help="write the table from stored results, nothing else")
    parser.add_argument("--methods", nargs="+", default=ORDER)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of tuning")
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--weights", help="of --network")
    parser.add_argument("--data", help="e.g. cifar10:PATH; random images if not given")
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--out", type=Path, help="run folder, or the file of --gpu")
    options = parser.parse_args()
    if options.table:
        write_table(json.loads((RESULTS / "methods.json").read_text(encoding="utf-8")))
    elif options.search:
        searches(options)
    else:
        digits(options)


if __name__ == "__main__":
    main()
