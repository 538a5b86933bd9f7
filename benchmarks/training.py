"""Training speed: lcprune's loop against a plain PyTorch loop, same network, batch, precision and data.

    python benchmarks/training.py --device cpu --out benchmarks/results/training_cpu.json
    python benchmarks/training.py --device cuda --precision bf16 --seconds 1 --rounds 2 \\
        --channels-first resnet56 mobilenetv2 --out benchmarks/results/training_gpu.json
    python benchmarks/training.py --device cuda --precision bf16 --seconds 1 --rounds 2 --networks resnet56 \\
        --compile resnet56 --out benchmarks/results/training_gpu_compiled.json

The plain loop is what one writes by hand: eager, images already on the device, the same crop and flip, `SGD`
as it comes. The two take turns in one process, and the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from lcprune import data, models, tune
from lcprune.data.arrays import draw_shifts, gather, pad_images
from lcprune.files import write_json
from lcprune.tune.feed import make_feed
from lcprune.tune.step import Stepper


def synthetic(images: int = 10_000) -> data.Dataset:
    """Random images of CIFAR's shape: speed does not depend on what they show."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    labels = generator.integers(0, 10, images)
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:100], "y_test": labels[:100]}
    return data.from_arrays("synthetic", arrays, num_classes=10)


def ours(name: str, dataset: data.Dataset, recipe: tune.Recipe, device: torch.device) -> Callable[[int], None]:
    """A function that runs so many steps of lcprune's loop."""
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = models.build(name).to(device=device, memory_format=layout).train()
    feed = make_feed(dataset, recipe.batch_size, True, 0, device)
    network = torch.compile(model, dynamic=False) if recipe.compile else model
    groups = [(list(model.parameters()), [0.01])]
    stepper = Stepper(network, feed, [recipe], groups, capture=device.type == "cuda" and recipe.cuda_graph)
    state = {"position": feed.steps}

    def run(steps: int) -> None:
        for _ in range(steps):
            if state["position"] == feed.steps:
                stepper.start(0, 0)
                state["position"] = 0
            stepper.step(state["position"])
            state["position"] += 1

    return run


def plain(name: str, dataset: data.Dataset, recipe: tune.Recipe, device: torch.device) -> Callable[[int], None]:
    """A function that runs so many steps of a loop written by hand."""
    model = models.build(name).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
    assert isinstance(dataset.train, data.ArraySplit)
    images, labels = dataset.train.images.to(device), dataset.train.labels.to(device)
    padded = pad_images(images, dataset.augmentation.pad)
    mean = torch.tensor(dataset.mean, device=device).view(1, 3, 1, 1)
    std = torch.tensor(dataset.std, device=device).view(1, 3, 1, 1)
    generator = torch.Generator().manual_seed(0)
    totals = {"loss": 0.0}

    def run(steps: int) -> None:
        for _ in range(steps):
            index = torch.randint(len(labels), (recipe.batch_size,), generator=generator).to(device)
            drawn = draw_shifts(len(index), dataset.augmentation, generator).to(images.device)
            batch = gather(padded, index, drawn, *images.shape[1:3])
            inputs = (batch.permute(0, 3, 1, 2).contiguous().float() / 255 - mean) / std
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
                loss = functional.cross_entropy(model(inputs), labels[index])
            loss.backward()
            optimizer.step()
        totals["loss"] = float(loss.detach())

    return run


def measure(
    loops: dict[str, Callable[[int], None]], batch: int, device: torch.device, seconds: float, rounds: int
) -> dict[str, dict[str, Any]]:
    """Images per second of each loop, taking turns."""

    def timed(run: Callable[[int], None], steps: int) -> float:
        start = time.perf_counter()
        run(steps)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    steps = {}
    warm = 3 if device.type == "cuda" else 1
    for name, run in loops.items():
        timed(run, warm)
        once = timed(run, warm) / warm
        steps[name] = max(1, min(2000, round(seconds / once)))
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            rates[name].append(steps[name] * batch / timed(run, steps[name]))
    return {
        name: {
            "images_per_second": round(statistics.median(values), 1),
            "lowest": round(min(values), 1),
            "highest": round(max(values), 1),
            "steps_per_round": steps[name],
        }
        for name, values in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=["resnet56", "vgg16", "mobilenetv2"])
    parser.add_argument("--batch", type=int, help="images per step; 128 on a GPU, 32 on a CPU")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--compile", nargs="*", default=[], help="networks to try with torch.compile as well")
    parser.add_argument("--channels-first", nargs="*", default=[], help="networks to try in this layout too")
    parser.add_argument("--seconds", type=float, default=3.0, help="per loop and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    batch_size = arguments.batch or (128 if device.type == "cuda" else 32)
    torch.backends.cudnn.benchmark = True  # for both loops
    dataset = synthetic()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "batch": batch_size,
        "rounds": arguments.rounds,
        "records": [],
    }
    print(
        "| network | precision | plain, images/s | lcprune, images/s | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    for name in arguments.networks:
        for precision in arguments.precision:
            recipe = tune.recipe("baseline", batch_size=batch_size, precision=precision)
            loops = {
                "plain": plain(name, dataset, recipe, device),
                "lcprune": ours(name, dataset, recipe, device),
            }
            variants = {"compiled": (arguments.compile, {"compile": True})}
            variants["channels first"] = (arguments.channels_first, {"channels_last": False})
            for title, (chosen, change) in variants.items():
                if name in chosen:
                    loops[f"lcprune, {title}"] = ours(name, dataset, replace(recipe, **change), device)
            measured = measure(loops, batch_size, device, arguments.seconds, arguments.rounds)
            reference = measured["plain"]["images_per_second"]
            for loop in list(measured)[1:]:
                rate = measured[loop]["images_per_second"]
                ratio = round(rate / reference, 2)
                title = name + loop.removeprefix("lcprune").replace(", ", " ")
                print(f"| {title} | {precision} | {reference:,.0f} | {rate:,.0f} | {ratio} |", flush=True)
            report["records"].append({"network": name, "precision": precision, **measured})
            if arguments.out:
                write_json(arguments.out, report)


if __name__ == "__main__":
    main()
