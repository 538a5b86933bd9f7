"""All methods at the same limit on digits, and how long AMC and LcP search.

    python benchmarks/methods.py --jobs 4                  # every method, 50 % MACs, three seeds
    python benchmarks/methods.py --table                   # only write the tables of docs/methods.md anew
    python benchmarks/methods.py --gpu --data cifar10:PATH --weights resnet56.safetensors    # see method_times.py

Three rounds, each a set of cells (method, options, seed) that run side by side on one core each and do not depend on
how many do:

1. how to tune a cut network, for all methods alike: four settings, by what a uniformly cut network gains
2. options of the methods that train: four settings each, the published ones among them
3. every method with three seeds

Rounds 1 and 2 see no test image: the validation split decides, by its loss, with a seed that round 3 does not use.
A cell is one cell of `lcprune compare`. Finished cells stay in the folder `--out`, and a run that was stopped goes on
with the others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import method_tables
import method_times
import torch

from lcprune import data
from lcprune.errors import TuneError
from lcprune.evaluate import Evaluation
from lcprune.files import write_json
from lcprune.runs import RunFolder
from lcprune.study import NetworkJob, Study, open_network, trace_network
from lcprune.tune import recipe

TRAIN = ("--set", "tune.batch_size=64", "--set", "tune.lr_decay=cosine")
GRID_SEED = 100

# The first entry is the paper's fine-tuning.
TUNING = [{"lr": lr, "batch_size": batch} for lr in (0.01, 0.05) for batch in (128, 32)]
_RATES = [{"tune_steps": 10, "lr": lr} for lr in (1e-4, 3e-4, 1e-3, 3e-3)]
# The first entry is as published where that is known, or else the library's default. An epoch of digits is 10 steps of
# 128 images and 40 of 32; 10 steps of 32 after each unit are about 40 epochs in all.
GRIDS: dict[str, list[dict[str, Any]]] = {
    "soft": [{"clip": clip, "batch_size": batch} for clip in (None, 1.0) for batch in (128, 32)],
    "slimming": [{"strength": strength, "batch_size": batch} for strength in (1e-4, None) for batch in (128, 32)],
    "single_filter": _RATES,
    "single_filter_fisher": _RATES,
    "morphnet": [{"lr": lr, "batch_size": batch} for lr in (0.01, 0.05) for batch in (128, 32)],
}


@dataclass(frozen=True)
class Cell:
    """One network: cut, tuned and judged.

    Attributes:
        name: of its folder.
        folder: that holds all cells, and the network in `train`.
        method: one of `lcprune.methods()`.
        seed: of images, search, training and tuning.
        epochs: of tuning.
        tuning: changes of the recipe "finetune".
        options: of the method; what is not here has its default.
        test: judged on test images; otherwise on the validation split, and test images are out of reach.
    """

    name: str
    folder: Path
    method: str
    seed: int
    epochs: int
    tuning: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    test: bool = False


def compute(cell: Cell) -> dict[str, Any]:
    """The cell's row of results; what was done before is not done again."""
    dataset = data.load("digits")
    if not cell.test:
        dataset = replace(dataset, test=dataset.test.subset([]))
    network = open_network(str(cell.folder / "train"), dataset=dataset, device="cpu")
    settings = {key: json.dumps(value) for key, value in asdict(cell).items() if key not in ("name", "folder")}
    path = cell.folder / "cells" / cell.name
    begun = (path / "config.toml").exists()
    run = RunFolder.resume(path, "cell", settings) if begun else RunFolder.create(path, "cell", settings)
    with run:
        tuning = recipe("finetune", epochs=cell.epochs, **cell.tuning)
        how = {"evaluation": Evaluation(after="cut"), "options": {cell.method: cell.options}}  # the paper's LcP
        study = Study(run, network, trace_network(network), dataset, tuning, progress=False, repair="none", **how)
        try:
            row = study.make(NetworkJob(cell.method, {"macs": 0.5}, cell.seed))
        except TuneError as error:  # a setting under which the training fails is one not to choose
            if cell.test:
                raise
            print(f"{cell.name}: {error}", flush=True)
            return {"loss": None, "accuracy": None, "search_seconds": None, "options": cell.options}
    (plan,) = run.file("networks").glob("*/plan.json")
    trainings = json.loads(plan.read_text(encoding="utf-8"))["meta"].get("trainings")
    return {**row, **({"trainings": trainings} if trainings else {}), "options": cell.options}


def compute_all(cells: Iterable[Cell], pool: ProcessPoolExecutor) -> dict[str, dict[str, Any]]:
    """Rows by name of cell."""
    cells = list(cells)
    futures = {pool.submit(compute, cell): cell for cell in cells}
    rows: dict[str, dict[str, Any]] = {}
    try:
        for done in as_completed(futures):
            name, row = futures[done].name, done.result()
            rows[name] = row
            print(f"{len(rows)} of {len(cells)}  {name}: {_words(row)}", flush=True)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return {cell.name: rows[cell.name] for cell in cells}


def _words(row: dict[str, Any]) -> str:
    if row["loss"] is None:
        return "the training failed"
    return f"loss {row['loss']:.4f}, accuracy {row['accuracy']:.2%}, {row['search_seconds']:.1f} s choosing"


def choose(grid: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The setting with the least validation loss, and what all of them gave; of equal ones the first.

    Raises:
        TuneError: the training failed under every setting.
    """
    tried = [
        {"options": options, "loss": row["loss"], "accuracy": row["accuracy"], "seconds": row["search_seconds"]}
        | ({"trainings": row["trainings"]} if "trainings" in row else {})
        for options, row in zip(grid, rows, strict=True)
    ]
    finished = [one for one in tried if one["loss"] is not None]
    if not finished:
        raise TuneError(f"the training failed under every setting of {grid}")
    return {"chosen": min(finished, key=lambda one: one["loss"])["options"], "tried": tried}


def train(folder: Path) -> None:
    """The network that all methods cut."""
    words = ["train", "digits_resnet", "--data", "digits", "--epochs", "30", "--out", folder, *TRAIN]
    words += ["--device", "cpu", "--no-report", "--quiet", *(["--resume"] if folder.exists() else [])]
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "lcprune", *map(str, words)], check=True, env=single)


def digits(options: argparse.Namespace) -> None:
    """Train a network, choose options on its validation split, compare all methods."""
    folder: Path = options.out or Path("runs") / "methods"
    if not (folder / "train" / "model.safetensors").exists():
        train(folder / "train")

    def cell(name: str, method: str, seed: int, tuning: dict[str, Any], own: dict[str, Any], test: bool) -> Cell:
        return Cell(f"{method}-{name}", folder, method, seed, options.epochs, tuning, own, test)

    with ProcessPoolExecutor(options.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        first = [cell(f"{n}", "uniform", GRID_SEED, setting, {}, test=False) for n, setting in enumerate(TUNING)]
        tuning = choose(TUNING, list(compute_all(first, pool).values()))
        best = tuning["chosen"]
        searched = {
            method: [cell(f"{n}", method, GRID_SEED, best, own, test=False) for n, own in enumerate(GRIDS[method])]
            for method in GRIDS
            if method in options.methods
        }
        # The longest first, so that no core is left with them at the end.
        rows = compute_all([one for cells in reversed(searched.values()) for one in cells], pool)
        grids = {method: choose(GRIDS[method], [rows[c.name] for c in cells]) for method, cells in searched.items()}
        chosen = {method: grids[method]["chosen"] if method in grids else {} for method in options.methods}
        final = [
            cell(f"final-{seed}", method, seed, best, chosen[method], test=True)
            for method in sorted(options.methods, key=lambda name: (name not in GRIDS, method_tables.ORDER.index(name)))
            for seed in range(options.seeds)
        ]
        rows = compute_all(final, pool)
    dataset = data.load("digits")
    (original,) = RunFolder.open(folder / "train").records("results")
    results = {
        "what": "every method at 50 % of the MACs of a small residual network on digits",
        "settings": {"seeds": options.seeds, "epochs": options.epochs, "grid_seed": GRID_SEED},
        "images": {name: len(dataset.split(name)) for name in ("train", "val", "test")},
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "jobs": options.jobs,
        "tuning": tuning,
        "grids": grids,
        "rows": [original, *rows.values()],
    }
    write_json(options.results, results)
    print(method_tables.write(results, options.page))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="write the tables from stored results, nothing else")
    parser.add_argument("--methods", nargs="+", default=method_tables.ORDER, choices=method_tables.ORDER)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of tuning")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--results", type=Path, default=method_tables.RESULTS, help="file for the results")
    parser.add_argument("--page", type=Path, default=method_tables.PAGE, help="file for the tables")
    parser.add_argument("--out", type=Path, help="folder of the cells, or the file of --gpu")
    method_times.add_arguments(parser)
    options = parser.parse_args()
    if options.table:
        print(method_tables.write(json.loads(options.results.read_text(encoding="utf-8")), options.page))
        print(method_tables.write_searches(options.page))
    elif options.search:
        method_times.searches(options)
    else:
        digits(options)


if __name__ == "__main__":
    main()
