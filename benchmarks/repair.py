"""Repair without training on CIFAR-10: accuracy as cut, repaired in each way, and after 20 epochs of tuning from each.

    python benchmarks/repair.py train --network mobilenetv2 --data cifar10.npz --weights runs/repair
    python benchmarks/repair.py measure --network resnet56 --data cifar10.npz --weights benchmarks/paper/baselines
    python benchmarks/repair.py images --network resnet56 --data cifar10.npz --weights benchmarks/paper/baselines
    python benchmarks/repair.py relus --network resnet56 --data cifar10.npz --weights benchmarks/paper/baselines
    python benchmarks/repair.py tune --network resnet56 --data cifar10.npz --weights benchmarks/paper/baselines
    python benchmarks/repair.py show

`train` makes a network on 45,000 images. `measure` cuts it to four limits by three methods with three seeds and repairs
each cut in every way; `images` repairs with more and fewer images; `relus` refits with and without a look at what ReLUs
let through; `tune` tunes from each start. Each of them adds its rows to benchmarks/results/repair.json as soon as it
has them. `show` prints the tables of docs/repair.md.

The first seed repairs in each closed form, the others in the one that `auto` takes. Images for search and repair are
training images; no labels are used, but for --loss labels. Accuracies are those of the test images, or with --split
val, for choices, those of images that the network was not trained on (`--weights examples`, and what `train` makes).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import lcprune
from lcprune import data, models, tune
from lcprune.files import write_json
from lcprune.repairs import mend, refit
from lcprune.tune.checkpoint import save_weights

RESULTS = Path(__file__).parent / "results" / "repair.json"
LIMITS = ("70%", "50%", "30%", "20%")
METHODS = ("uniform", "naive", "lcp")
CLOSED = ("statistics", "stand-ins", "refit")
WAYS = (*CLOSED, "auto", "distil")
WORDS = {"none": "as cut", "statistics": "statistics", "stand-ins": "stand-ins", "refit": "refit", "auto": "auto"}
WORDS |= {"distil": "distilled"}
LOSSES = {"labels": nn.functional.cross_entropy, "divergence": "divergence"}
COUNTS = (100, 500, 2000, 5000)
BESTS = (50, 100, 200, 400)  # candidates after which a search says how good its best one is


def opened(options: argparse.Namespace) -> tuple[nn.Module, data.Dataset]:
    """The network and the data."""
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=options.val)
    model = models.build(options.network, num_classes=10)
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(options.weights.glob(f"{options.network}-*.safetensors"))[: options.files]:
        stored |= load_file(file)
    model.load_state_dict({name: value.to(model.state_dict()[name].dtype) for name, value in stored.items()})
    return model.to(options.device).eval(), dataset


def train(options: argparse.Namespace) -> None:
    """A network for `measure`, on the images that are not held out."""
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=options.val)
    torch.manual_seed(0)
    rate = 0.1 if options.network.startswith("vgg") else 0.2
    settings = {"lr": rate, "lr_decay": "cosine", "warmup_epochs": 2.0, "batch_size": 256, "weight_decay": 5e-4}
    settings["label_smoothing"] = options.smoothing
    precision = "bf16" if options.device == "cuda" else "fp32"
    recipe = tune.recipe("baseline", **settings, epochs=options.epochs, precision=precision, seed=0)
    network = models.build(options.network, num_classes=10)
    result = tune.fit(network, dataset, recipe, progress=False, device=options.device)
    options.weights.mkdir(parents=True, exist_ok=True)
    save_weights(options.weights / f"{options.network}-0.safetensors", result.model)
    options.split = "val"
    print(options.network, accuracy(result.model.float(), dataset, options), flush=True)


def accuracy(model: nn.Module, dataset: data.Dataset, options: argparse.Namespace) -> float:
    """On the test images, in float32; for choices, on those that are held out."""
    return float(tune.evaluate(model, dataset, options.split, device=options.device)[1])


def measure(options: argparse.Namespace) -> None:
    """Every method, limit and seed, repaired in every way."""
    model, dataset = opened(options)
    graph = lcprune.trace(model, models.example_input(options.network).to(options.device))
    add(options, "full", [{"network": options.network, "accuracy": accuracy(model, dataset, options)}])
    for seed in options.seeds:
        began = time.perf_counter()
        batches = dataset.batches("train", 128, limit=options.images, seed=seed, device=options.device)
        pool = options.candidates // 5
        search = lcprune.Search(pool=pool, iterations=options.candidates - pool)
        frontier = lcprune.pareto(
            graph,
            data=lcprune.Evaluation(batches, loss_fn=LOSSES[options.loss], images=options.images),
            macs=LIMITS,
            methods=[lcprune.LcP(search) if name == "lcp" else name for name in options.methods],
            metric=options.metric,
            learn="each",
            seed=seed,
            repair="none",
            progress=False,
        )
        seconds = time.perf_counter() - began
        for point in frontier.points:
            plan = point.plan
            row = {"network": options.network, "method": point.method, "limit": point.limit, "seed": seed}
            row["metric"] = plan.meta["metric"]
            row |= {"macs": plan.macs, "frontier_seconds": round(seconds, 1)}
            if point.history:
                row |= {"candidates": len(point.history), "search_seconds": round(point.history[-1].seconds, 1)}
                row["loss"] = options.loss
                row["best"] = {at: point.history[at - 1].best for at in BESTS if at <= len(point.history)}
            ways = CLOSED if seed == 0 else ("auto",)
            if options.distil and seed == options.seeds[0] and point.method != "uniform" and point.limit in (0.5, 0.2):
                ways = (*CLOSED, "distil")
            add(
                options, "measure", [row | entry for entry in repaired(model, plan, dataset, options, seed, None, ways)]
            )


def repaired(
    model: nn.Module,
    plan: Any,
    dataset: data.Dataset,
    options: argparse.Namespace,
    seed: int,
    images: int | None = None,
    ways: Iterable[str] = CLOSED,
) -> list[dict[str, Any]]:
    """Accuracy as cut and after every repair."""
    images = images or options.images
    small = plan.apply(model)
    batches = dataset.batches("train", 128, limit=images, seed=100 + seed, device=options.device)
    samples = [(image, ()) for inputs, _ in batches for image in inputs]
    rows = [{"how": "none", "accuracy": accuracy(small, dataset, options)}]
    for how in ways:
        network, done = mend(model, plan, small, samples, how, images=images, classes=True, seed=seed, progress=False)
        rows.append({"how": how, "accuracy": accuracy(network, dataset, options), "took": done.how})
        rows[-1] |= {"distance": done.distances.get(done.how), "seconds": done.seconds, "images": done.images}
    if "auto" in ways:
        return rows
    # "auto" tries the same, and takes the closest.
    closest = min((row for row in rows[1:] if row["how"] in CLOSED), key=lambda row: row["distance"])
    return [
        *rows,
        closest | {"how": "auto", "seconds": sum(row["seconds"] for row in rows[1:] if row["how"] in CLOSED)},
    ]


def count_images(options: argparse.Namespace) -> None:
    """Naive pruning at two limits, repaired with so many images."""
    model, dataset = opened(options)
    graph = lcprune.trace(model, models.example_input(options.network).to(options.device))
    for limit in ("50%", "20%"):
        plan = lcprune.prune(graph, macs=limit, method="naive", progress=False).plan
        for images in COUNTS:
            for seed in options.seeds:
                row = {"network": options.network, "limit": limit, "drawn": images, "seed": seed}
                found = repaired(model, plan, dataset, options, seed, images, CLOSED)
                add(options, "images", [row | entry for entry in found])


def relus(options: argparse.Namespace) -> None:
    """Three methods at three limits, refitted as if there were no ReLUs, and as it is."""
    model, dataset = opened(options)
    graph = lcprune.trace(model, models.example_input(options.network).to(options.device))
    pool = options.candidates // 5
    search = lcprune.LcP(lcprune.Search(pool=pool, iterations=options.candidates - pool))
    rounds = refit.ROUNDS
    for seed in options.seeds:
        batches = list(dataset.batches("train", 128, limit=options.images, seed=seed, device=options.device))
        samples = [(image, ()) for inputs, _ in batches for image in inputs]
        for method, limit in product(options.methods, options.limits):
            chosen = search if method == "lcp" else method
            plan = lcprune.prune(
                graph, macs=limit, method=chosen, data=batches, seed=seed, repair="none", progress=False
            ).plan
            row = {"network": options.network, "method": method, "limit": limit, "seed": seed}
            row |= {"candidates": options.candidates} if method == "lcp" else {}
            for refit.ROUNDS in (0, rounds):
                network, done = mend(
                    model, plan, plan.apply(model), samples, "refit", images=options.images, classes=True, seed=seed
                )
                entry = {"relus": refit.ROUNDS > 0, "accuracy": accuracy(network, dataset, options)}
                entry |= {"distance": done.distances.get(done.how), "seconds": done.seconds, "images": done.images}
                add(options, "relus", [row | entry])


def tuned(options: argparse.Namespace) -> None:
    """Naive pruning at two limits, tuned for 20 epochs from every start, as one fleet."""
    model, dataset = opened(options)
    graph = lcprune.trace(model, models.example_input(options.network).to(options.device))
    ways = ("none", "stand-ins", "refit", "distil")
    keys, plans, networks = [], [], []
    for limit in ("50%", "20%"):
        plan = lcprune.prune(graph, macs=limit, method="naive", progress=False).plan
        batches = dataset.batches("train", 128, limit=options.images, seed=100, device=options.device)
        samples = [(image, ()) for inputs, _ in batches for image in inputs]
        for how in ways:
            small = plan.apply(model)
            start, _ = mend(model, plan, small, samples, how, images=options.images, classes=True)
            for seed in options.seeds:
                keys.append({"network": options.network, "limit": limit, "start": how, "seed": seed})
                keys[-1]["before"] = accuracy(start, dataset, options)
                plans.append(plan)
                networks.append(lcprune.Plan.apply(plan, model))
                networks[-1].load_state_dict(start.state_dict())
    precision = "bf16" if options.device == "cuda" else "fp32"
    recipe = tune.recipe("finetune", epochs=options.epochs, precision=precision, eval_every=options.epochs)
    results = tune.fit_fleet(
        model, plans, dataset, recipe, models=networks, seeds=[key["seed"] for key in keys], device=options.device
    )
    rows = [
        key | {"accuracy": accuracy(result.model.float(), dataset, options), "epochs": options.epochs}
        for key, result in zip(keys, results, strict=True)
    ]
    add(options, "tune", rows)


def add(options: argparse.Namespace, kind: str, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows into the record."""
    stored: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    where = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu"
    if kind == "full":  # once, however often a network is measured
        stored[kind] = [row for row in stored.get(kind, []) if row["network"] != options.network]
    stored[kind] = stored.get(kind, []) + [row | {"machine": where, "torch": torch.__version__} for row in rows]
    write_json(options.out, stored, indent=1)
    for row in rows:
        print(
            kind,
            {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()},
            flush=True,
        )


def show(options: argparse.Namespace) -> None:
    """The tables, as Markdown."""
    stored = json.loads(options.out.read_text())
    for full in stored["full"]:
        name = full["network"]
        print(f"\n{name}, {100 * full['accuracy']:.1f} %\n")
        mine = _complete([row for row in stored["measure"] if row["network"] == name])
        hows = [how for how in ("none", *WAYS) if any(row["how"] == how for row in mine)]
        print("| MACs | method | " + " | ".join(WORDS[how] for how in hows) + " |\n|---|---|" + "---|" * len(hows))
        for limit in dict.fromkeys(row["limit"] for row in mine):
            for method in METHODS:
                cells = [_cell(mine, limit=limit, method=method, how=how) for how in hows]
                print(f"| {round(100 * limit)} % | {method} | " + " | ".join(cells) + " |")
    print("\n| network, MACs | repair | " + " | ".join(f"{count:,} images" for count in COUNTS) + " |")
    print("|---|---|" + "---|" * len(COUNTS))
    for name, limit in dict.fromkeys((row["network"], row["limit"]) for row in stored.get("images", [])):
        for how in ("statistics", "stand-ins", "refit"):
            cells = [_cell(stored["images"], network=name, limit=limit, how=how, drawn=count) for count in COUNTS]
            print(f"| {name}, {limit} | {how} | " + " | ".join(cells) + " |")
    print("\n| network, MACs | method | every output counts | what ReLUs let through counts |\n|---|---|---|---|")
    for name, limit, method in dict.fromkeys(
        (row["network"], row["limit"], row["method"]) for row in stored.get("relus", [])
    ):
        same = {"network": name, "limit": limit, "method": method}
        cells = [_cell(stored["relus"], **same, relus=relus) for relus in (False, True)]
        print(f"| {name}, {limit} | {method} | " + " | ".join(cells) + " |")
    print("\n| network, MACs | start | before | after 20 epochs |\n|---|---|---|---|")
    for name, limit, how in dict.fromkeys(
        (row["network"], row["limit"], row["start"]) for row in stored.get("tune", [])
    ):
        rows = [row for row in stored["tune"] if (row["network"], row["limit"], row["start"]) == (name, limit, how)]
        print(f"| {name}, {limit} | {WORDS[how]} | {mean(rows, 'before')} | {mean(rows, 'accuracy')} |")


def _complete(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of seeds that have every method at that limit."""
    found = {(row["limit"], row["seed"], row["method"]) for row in rows if row["how"] == "auto"}
    return [row for row in rows if all((row["limit"], row["seed"], method) in found for method in METHODS)]


def _cell(rows: Iterable[dict[str, Any]], **wanted: Any) -> str:
    return mean([row for row in rows if all(row.get(key) == value for key, value in wanted.items())], "accuracy")


def mean(rows: Sequence[dict[str, Any]], key: str) -> str:
    """Of shares, in percent, with the deviation where there is one."""
    values = [100 * row[key] for row in rows]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 and statistics.stdev(values) >= 0.05 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "measure", "images", "relus", "tune", "show"])
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--data", help="CIFAR-10: an npz file or the folder of its batches")
    parser.add_argument("--weights", type=Path, help="folder with NETWORK-*.safetensors")
    parser.add_argument("--files", type=int, default=1, help="of these, how many hold the network in parts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--limits", nargs="+", default=LIMITS[1:], help="of `relus`")
    parser.add_argument("--metric", default="auto", help="that units are ranked by; auto: each method's own")
    parser.add_argument("--loss", default="divergence", choices=LOSSES, help="that candidates are judged by")
    parser.add_argument("--images", type=int, default=2000, help="for search and repair")
    parser.add_argument("--candidates", type=int, default=200, help="of the search at each limit")
    parser.add_argument("--distil", action="store_true", help="`measure` distils half and a fifth, too, for one seed")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--smoothing", type=float, default=0.0, help="of labels, in `train`")
    parser.add_argument("--split", default="test", choices=["test", "val"], help="that judges: val for choices")
    parser.add_argument("--val", type=int, default=5000, help="training images that are held out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    work = {"train": train, "measure": measure, "images": count_images, "relus": relus}
    work |= {"tune": tuned, "show": show}
    work[options.what](options)


if __name__ == "__main__":
    main()
