"""What is left of a ranking after tuning: uniform, naive and LcP's cuts of one network, tuned side by side.

    python benchmarks/tuned.py plans --ways lcp-l2 lcp-rebuilt --seeds 1 2 3 --data cifar10:PATH --plans runs/tuned
    python benchmarks/tuned.py tune --ways naive lcp-l2 lcp-rebuilt --seeds 1 2 3 --data cifar10:PATH --plans runs/tuned
    python benchmarks/tuned.py show

`plans` makes the cuts, one file each, and leaves those that are there; several processes may share the work. `tune`
tunes all that are named as one fleet and adds a row for each to benchmarks/results/tuned.json. `show` prints the table
of docs/results/resnet-56.md.

For choices, networks are pruned that were trained on 45,000 images, and judged on the other 5,000. The paper's own
settings are `--weights benchmarks/paper/baselines --name seed-1 --val 0 --split test --epochs 60`: a network that was
trained on all 50,000 images, tuned on them and judged on the test images.

    uniform, naive    by the metric l2
    lcp-cut           the paper: l2, candidates judged as they are cut, 64 and 336 of them by evolution
    lcp-l2            candidates judged after repair, by l2
    lcp-rebuilt       likewise by the metric that `prune` takes by default

What was judged after repair is tuned from stand-ins, as by `lcprune prune --epochs`, all else as it is cut. The plans
of the record are in benchmarks/results/tuned_plans.tar.xz (`tar xJf ... -C runs`), with some that were not tuned yet:
all of the paper's settings at 50 %, and those that `peers.py tune --methods lcp --metric l2` asks for (in `peers`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import lcprune
from lcprune import data, models, tune
from lcprune.files import write_json
from lcprune.repairs import mend

RESULTS = Path(__file__).parent / "results" / "tuned.json"
REPAIRED = ("lcp-l2", "lcp-rebuilt")
WAYS = ("uniform", "naive", "lcp-cut", *REPAIRED)
WORDS = {"lcp-cut": "LcP, as cut", "lcp-l2": "LcP, after repair, `l2`", "lcp-rebuilt": "LcP, after repair, `rebuilt`"}


def opened(options: argparse.Namespace) -> tuple[nn.Module, data.Dataset]:
    """The network and the data."""
    dataset = data.load(options.data, seed=0, val=options.val)
    file = options.weights / f"{options.network}-{options.name}.safetensors"
    model = models.build(options.network, num_classes=10, weights=file)
    return model.to(options.device).eval(), dataset


def make_plans(options: argparse.Namespace) -> None:
    """Every cut that is named, unless it is there."""
    model, dataset = opened(options)
    graph = lcprune.trace(model, models.example_input(options.network).to(options.device))
    for seed, limit, way in product(options.seeds, options.limits, options.ways):
        file = place(options, way, limit, seed)
        if file.exists():
            continue
        plan = chosen(graph, dataset, way, limit, seed, options)
        plan.save(file)
        print(file.name, plan.macs, plan.meta.get("seconds", ""), flush=True)


def chosen(
    graph: lcprune.ChannelGraph, dataset: data.Dataset, way: str, limit: str, seed: int, options: argparse.Namespace
) -> lcprune.Plan:
    """One cut."""
    after, search = "repair", lcprune.Search()
    if way == "lcp-cut":
        after, search = "cut", lcprune.Search(algorithm="evolution", pool=64, iterations=336)
    images = dataset.batches("train", 128, limit=options.images, seed=seed, device=options.device)
    return lcprune.prune(
        graph,
        macs=limit,
        method=lcprune.LcP(search) if way.startswith("lcp") else way,
        metric="rebuilt" if way == "lcp-rebuilt" else "l2",
        data=lcprune.Evaluation(images, images=options.images, after=after),
        seed=seed,
        repair="none",
        progress=False,
    ).plan


def place(options: argparse.Namespace, way: str, limit: str, seed: int) -> Path:
    """Where a plan lies."""
    folder: Path = options.plans / f"{options.network}-{options.name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{way}-{limit.rstrip('%')}-{seed}.json"


def tune_all(options: argparse.Namespace) -> None:
    """All plans that are named, as one fleet."""
    model, dataset = opened(options)
    rows, plans, starts = [], [], []
    full = accuracy(model, dataset, options)
    for seed, limit, way in product(options.seeds, options.limits, options.ways):
        plan = lcprune.Plan.load(place(options, way, limit, seed))
        small = plan.apply(model).eval()
        how = options.start or ("stand-ins" if way in REPAIRED else "none")
        images = dataset.batches("train", 128, limit=2000, seed=100 + seed, device=options.device)
        samples = [(image, ()) for inputs, _ in images for image in inputs]
        start, _ = mend(model, plan, small, samples, how, images=2000, classes=True, seed=seed, progress=False)
        rows.append({"network": options.network, "weights": options.name, "limit": limit, "way": way, "seed": seed})
        rows[-1] |= {"start": how, "split": options.split, "full": full, "before": accuracy(start, dataset, options)}
        plans.append(plan)
        starts.append(plan.apply(model))
        starts[-1].load_state_dict(start.state_dict())
        print(rows[-1], flush=True)
    precision = "bf16" if options.device == "cuda" else "fp32"
    recipe = tune.recipe("finetune", epochs=options.epochs, precision=precision, eval_every=options.epochs)
    seeds = [row["seed"] for row in rows]
    results = tune.fit_fleet(model, plans, dataset, recipe, models=starts, seeds=seeds, device=options.device)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    for row, result in zip(rows, results, strict=True):
        row |= {"accuracy": accuracy(result.model.float(), dataset, options), "epochs": options.epochs}
        row |= {"images": len(dataset.train), "machine": where, "torch": torch.__version__}
        print(row, flush=True)
    known = json.loads(options.out.read_text()) if options.out.exists() else []
    write_json(options.out, [*known, *rows], indent=1)


def accuracy(model: nn.Module, dataset: data.Dataset, options: argparse.Namespace) -> float:
    """In float32, on the test images or, for choices, on those that are held out."""
    return float(tune.evaluate(model, dataset, options.split, device=options.device)[1])


def show(options: argparse.Namespace) -> None:
    """The tables, as Markdown."""
    known: list[dict[str, Any]] = json.loads(options.out.read_text())
    for about in dict.fromkeys((r["network"], r["weights"], r["split"], r["epochs"], r["images"]) for r in known):
        network, weights, split, epochs, images = about
        mine = [r for r in known if (r["network"], r["weights"], r["split"], r["epochs"], r["images"]) == about]
        print(
            f"\n{network} ({weights}), {100 * mine[0]['full']:.2f} % on {split}, {epochs} epochs of {images:,} images\n"
        )
        keys = dict.fromkeys((row["way"], row["start"]) for row in mine)
        words = [f"{WORDS.get(way, way)}{'' if start == 'none' else f', {start}'}" for way, start in keys]
        print("| MACs | " + " | ".join(words) + " |\n|---|" + "---|" * len(words))
        for limit in dict.fromkeys(row["limit"] for row in mine):
            cells = [cell([r for r in mine if (r["limit"], r["way"], r["start"]) == (limit, *key)]) for key in keys]
            print(f"| {limit.replace('%', ' %')} | " + " | ".join(cells) + " |")


def cell(rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation in percent."""
    values = [100 * row["accuracy"] for row in rows]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plans", "tune", "show"])
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--weights", type=Path, default=Path("examples"), help="folder of NETWORK-NAME.safetensors")
    parser.add_argument("--name", default="cifar10")
    parser.add_argument("--data", help="e.g. cifar10:PATH")
    parser.add_argument("--val", type=int, default=5000, help="training images that are held out")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--limits", nargs="+", default=["30%", "20%"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--start", choices=["none", "stand-ins"], help="of all, instead of what the text above says")
    parser.add_argument("--images", type=int, default=3000, help="of a search")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plans", type=Path, default=Path("runs/tuned"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    {"plans": make_plans, "tune": tune_all, "show": show}[options.what](options)


if __name__ == "__main__":
    main()
