"""Baselines of the paper's accuracy on CIFAR-10: recipes compared on held-out images, then some seeds on all images.

    python benchmarks/paper/fleet_baselines.py choose --data cifar10.npz --out runs/resnet56
    python benchmarks/paper/fleet_baselines.py train --data cifar10.npz --out runs/resnet56 --epochs 300
    python benchmarks/paper/fleet_baselines.py keep --data cifar10.npz --out runs/resnet56

`choose` trains every recipe of RECIPES with two seeds on 45,000 images, all at once as a fleet, and writes
OUT/recipes.json. The recipe with the best mean accuracy on the other 5,000 after the last epoch is the chosen one.
`train` trains the chosen recipe on all 50,000 images, one network per seed, looks at the test images once, and writes
OUT/seeds.json and OUT/seed-N.safetensors. After `--minutes` either writes checkpoints and leaves; the same command goes
on. `keep` puts the weights into benchmarks/paper/baselines/, the first seed's in float32 and the others' in float16,
judges these files, and puts the records into benchmarks/paper/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from lcprune import data, models, tune
from lcprune.files import atomic_write, write_json
from lcprune.tune.checkpoint import save_weights

# The usual recipe of public CIFAR networks, and what is tried beside it. Batch 256 at 0.2 is as noisy as 128 at 0.1 and
# needs half the steps.
COMMON = {"lr_decay": "cosine", "warmup_epochs": 5.0, "batch_size": 256, "lr": 0.2, "weight_decay": 5e-4}
RECIPES: dict[str, dict[str, float]] = {
    "usual": {},
    "low rate": {"lr": 0.1},
    "high decay": {"weight_decay": 1e-3},
    "smoothed": {"label_smoothing": 0.1},
}
TRIAL_SEEDS = (11, 12)
KEPT = Path(__file__).parent / "baselines"
RESULTS = Path(__file__).parent / "results"
SILENT = 1e-6  # variance before a batch norm of a channel that training has given up


def recipe_of(name: str, seed: int, options: argparse.Namespace) -> tune.Recipe:
    """A recipe of RECIPES for one network."""
    precision = "bf16" if options.device.startswith("cuda") else "fp32"
    settings: dict[str, Any] = {**COMMON, **RECIPES[name], "precision": precision, "epochs": options.epochs}
    settings["lr"] *= options.rate
    return tune.recipe("baseline", **settings, seed=seed, eval_every=10)


def start(network: str, seed: int) -> nn.Module:
    """A network with the random weights of a seed."""
    torch.manual_seed(seed)
    return models.build(network, num_classes=10)


def fit(
    names: Sequence[str], recipes: Sequence[tune.Recipe], dataset: data.Dataset, options: argparse.Namespace
) -> dict[str, tune.FitResult]:
    """Train networks together, or go on with them; those whose loss is lost are left behind.

    Args:
        names: folders in OUT.
        recipes: one per name.
        dataset: what they are trained on.
        options: of the command.
    """
    left = options.began + 60 * options.minutes - time.time()
    networks = [start(options.network, recipe.seed) for recipe in recipes]
    folders = [options.out / name for name in names]
    common: dict[str, Any] = {
        "resume": True,
        "device": options.device,
        "max_seconds": left,
        "progress": options.progress,
    }
    if len(names) == 1:
        return {names[0]: tune.fit(networks[0], dataset, recipes[0], run_dir=folders[0], **common)}
    try:
        results = tune.fit_fleet(
            networks[0], [None] * len(names), dataset, recipes, models=networks, run_dirs=folders, **common
        )
    except tune.LostMembers as error:
        print(error, flush=True)
        well = [number for number in range(len(names)) if number not in error.members]
        return fit([names[n] for n in well], [recipes[n] for n in well], dataset, options)
    return dict(zip(names, results, strict=True))


def choose(options: argparse.Namespace) -> None:
    """Compare the recipes."""
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=options.val)
    pairs = {f"{name.replace(' ', '-')}-{seed}": (name, seed) for name in RECIPES for seed in TRIAL_SEEDS}
    results = fit(list(pairs), [recipe_of(*pair, options) for pair in pairs.values()], dataset, options)
    if not all(result.finished for result in results.values()):
        sys.exit("out of time: the same command goes on")
    rows = []
    for name in RECIPES:
        looks = {s: results[k].val_accuracy for k, (other, s) in pairs.items() if other == name and k in results}
        if len(looks) == len(TRIAL_SEEDS):
            rows.append({"recipe": name, "val_accuracy": statistics.mean(looks.values()), "by_seed": looks})
    best = max(rows, key=lambda row: row["val_accuracy"])["recipe"]
    record = {"chosen": best, "recipes": rows, **about(results, dataset, options)}
    record["settings"] = {name: recipe_of(name, 0, options).to_json() for name in RECIPES}
    write_json(options.out / "recipes.json", {**record, "epochs": epochs(results)}, indent=1)
    for row in rows:
        print(f"{row['recipe']}: {row['val_accuracy']:.4f} {row['by_seed']}", flush=True)
    print(f"chosen: {best}; {record['seconds']} s, {record['images_per_second']:,.0f} images/s", flush=True)


def train(options: argparse.Namespace) -> None:
    """Train the chosen recipe on all images, and look at the test images once."""
    name = options.recipe or json.loads((options.out / "recipes.json").read_text())["chosen"]
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=0)
    recipes = [recipe_of(name, seed, options) for seed in options.seeds]
    results = fit([f"seed-{seed}" for seed in options.seeds], recipes, dataset, options)
    if not all(result.finished for result in results.values()):
        sys.exit("out of time: the same command goes on")
    rows = []
    for key, result in results.items():
        loss, accuracy = tune.evaluate(result.model, dataset, "test", device=options.device)
        save_weights(options.out / f"{key}.safetensors", result.model, {"test_accuracy": f"{accuracy:.4f}"})
        last = result.history[-1]
        rows.append({"seed": int(key.removeprefix("seed-")), "test_accuracy": accuracy, "test_loss": loss})
        rows[-1] |= {"train_accuracy": last["train_accuracy"], "train_loss": last["train_loss"]}
    found = [row["test_accuracy"] for row in rows]
    record: dict[str, Any] = {"recipe": name, "mean": statistics.mean(found)}
    record |= {"deviation": statistics.stdev(found) if len(found) > 1 else None, "networks": rows}
    record |= about(results, dataset, options)
    record["settings"] = recipe_of(name, 0, options).to_json()
    write_json(options.out / "seeds.json", {**record, "epochs": epochs(results)}, indent=1)
    print(f"{name}, {options.epochs} epochs: {found}, mean {record['mean']:.4f}, deviation {record['deviation']}")
    print(f"{record['seconds']} s, {record['images_per_second']:,.0f} images/s", flush=True)


def keep(options: argparse.Namespace) -> None:
    """Put weights and records where they are committed."""
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=0)
    record = json.loads((options.out / "seeds.json").read_text())
    name = record["network"]
    for number, row in enumerate(record["networks"]):
        dtype = torch.float16 if number else torch.float32
        file = KEPT / f"{name}-seed-{row['seed']}.safetensors"
        weights = load_file(options.out / f"seed-{row['seed']}.safetensors")
        stored = {key: value.to(dtype) if value.is_floating_point() else value for key, value in weights.items()}
        with atomic_write(file) as temporary:
            save_file(stored, temporary, metadata={"test_accuracy": f"{row['test_accuracy']:.4f}"})
        _, accuracy = tune.evaluate(models.build(name, weights=file), dataset, "test", device=options.device)
        row |= {"file": file.name, "stored_as": str(dtype).removeprefix("torch.")}
        row |= {"file_accuracy": accuracy, "file_judged_on": torch.device(options.device).type}
        spreads = torch.cat([value for key, value in weights.items() if key.endswith("running_var")])
        row |= {"channels": len(spreads), "silent_channels": int((spreads < SILENT).sum())}
        print(f"{file.name}: {row['test_accuracy']:.4f}, as stored {accuracy:.4f}", flush=True)
    write_json(RESULTS / f"{name}-seeds.json", record, indent=1)
    write_json(RESULTS / f"{name}-recipes.json", json.loads((options.out / "recipes.json").read_text()), indent=1)


def about(results: Mapping[str, tune.FitResult], dataset: data.Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """What every record says of where and how fast it was made."""
    any_one = next(iter(results.values()))
    on_gpu = options.device.startswith("cuda")
    return {
        "network": options.network,
        "machine": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "training_images": len(dataset.train),
        "validation_images": len(dataset.val),
        "together": len(results),
        "seconds": round(any_one.seconds, 1),
        "images_per_second": round(any_one.images_per_second * len(results)),
        "command": " ".join(["python", "benchmarks/paper/fleet_baselines.py", *sys.argv[1:]]),
    }


def epochs(results: Mapping[str, tune.FitResult]) -> dict[str, list[dict[str, Any]]]:
    """Every tenth epoch of each network."""
    keys = ("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy")
    return {
        name: [
            {key: row[key] for key in keys if row[key] is not None} for row in result.history if not row["epoch"] % 10
        ]
        for name, result in results.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "train", "keep"])
    parser.add_argument("--data", required=True, help="CIFAR-10: an npz file or the folder of its batches")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of `train`; the first is to be pruned")
    parser.add_argument("--recipe", choices=list(RECIPES), help="of `train`, in place of the chosen one")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of all learning rates")
    parser.add_argument("--val", type=int, default=5000, help="training images that `choose` holds out")
    parser.add_argument("--minutes", type=float, default=1e6, help="checkpoint and leave after so long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--progress", action="store_true")
    options = parser.parse_args()
    options.began = time.time()
    {"choose": choose, "train": train, "keep": keep}[options.what](options)


if __name__ == "__main__":
    main()
