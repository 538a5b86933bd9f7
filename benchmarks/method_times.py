"""How long AMC and LcP search: the same candidates, images, limit, evaluator, process and machine.

    python benchmarks/methods.py --gpu --data cifar10:PATH --weights resnet56.safetensors
    python benchmarks/methods.py --search --network digits_resnet --data digits --images 600    # on a CPU

Both searches are warm (a short one first), make their own evaluator (a captured CUDA graph on a GPU, counted) and
look up selections that they have seen. LcP's objective is the loss difference, AMC's reward the accuracy, both on
the same training images. AMC's agent is small and lives on the CPU; beside a GPU, with as many threads as make its
updates fastest. The result is written after each search, so that a stopped run leaves what it has.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

import method_tables
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import data, models
from lcprune.baselines.amc import top1_error
from lcprune.baselines.ddpg import Agent, Transition
from lcprune.batches import Batch, collate, draw
from lcprune.data import Dataset
from lcprune.evaluate import SlicingEvaluator
from lcprune.files import write_json
from lcprune.select import Limits
from lcprune.task import Choice, Task

LIMIT = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a comparison of searches can be told."""
    gpu = torch.cuda.is_available()
    parser.add_argument("--gpu", "--search", action="store_true", dest="search", help="time AMC against LcP")
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--weights", help="of --network")
    parser.add_argument("--data", help="e.g. cifar10:PATH; random images if not given")
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")


def searches(options: argparse.Namespace) -> None:
    """Time LcP's search and AMC's, everything else being equal."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = models.build(options.network, num_classes=10, weights=options.weights).eval().to(device)
    example = models.example_input(options.network).to(device)
    graph = lcprune.trace(model, example)
    dataset = data.load(options.data, seed=0) if options.data else None
    samples = draw(_batches(dataset, "train", options.images, example), options.images, 0)
    held_out = collate(draw(_batches(dataset, "val", options.images, example), options.images, 0), 500, device)
    if device.type == "cuda":  # on a CPU the evaluator, too, depends on it
        torch.set_num_threads(fastest_threads(len(graph.groups)))

    def choose(method: str, candidates: int) -> Choice:
        pool = max(1, candidates * 64 // 400)
        lcp = lcprune.LcP(lcprune.Search(pool=pool, iterations=candidates - pool))
        amc = lcprune.baselines.Amc(episodes=candidates, warmup=candidates // 4)
        how = lcprune.Evaluation(images=options.images, after="cut")
        task = Task(graph, Limits(macs=LIMIT), samples=samples, evaluation=how)
        return (amc if method == "amc" else lcp).choose(task)

    results: dict[str, Any] = {
        "what": "time of the AMC search and of the LcP search, same candidates, images and evaluator",
        "network": options.network,
        "groups": len(graph.groups),
        "macs": LIMIT,
        "candidates": options.candidates,
        "images": len(samples),
        "data": options.data.partition(":")[0] if options.data else "random",
        "weights": Path(options.weights).name if options.weights else None,
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    file = options.out or method_tables.FOLDER / f"methods-search-{device.type}.json"
    whole = [np.arange(group.size) for group in graph.groups]
    results["whole"] = _judge(graph, whole, samples, held_out, device)
    for method in ("lcp", "amc"):
        choose(method, 8)  # libraries load, kernels are chosen
        _wait(device)
        started = time.perf_counter()
        choice = choose(method, options.candidates)
        _wait(device)
        seconds = time.perf_counter() - started
        results[method] = {
            "seconds": seconds,
            "parts": choice.seconds,
            "evaluations": choice.meta["evaluations"],
            "found": _judge(graph, choice.kept, samples, held_out, device),
        }
        if "lcp" in results and "amc" in results:
            results["ratio"] = results["amc"]["seconds"] / results["lcp"]["seconds"]
        write_json(file, results)
        print(_line(method, choice, results), flush=True)
    if not options.out:
        method_tables.write_searches()
    print(f"AMC takes {results['ratio']:.2f} times as long as LcP (the paper says 8, on different machines); {file}")


def fastest_threads(layers: int) -> int:
    """With how many threads the agent of so many layers is updated fastest; it must not be slowed by our settings."""
    agent = Agent(features=11, memory=100 * layers, seed=0)
    state = np.linspace(0, 1, 11)
    agent.remember([Transition(state, 0.5, state, False)] * 64, 0.5)
    tried: dict[int, float] = {}
    for threads in sorted({1, 2, 4, os.cpu_count() or 1} & set(range(1, (os.cpu_count() or 1) + 1))):
        torch.set_num_threads(threads)
        for count in (20, 60):  # the first are a warm-up
            started = time.perf_counter()
            for _ in range(count):
                agent.update()
            tried[threads] = time.perf_counter() - started
    return min(tried, key=lambda threads: tried[threads])


def _batches(dataset: Dataset | None, split: str, images: int, example: torch.Tensor) -> Any:
    if dataset is not None:
        return dataset.batches(split, 500, limit=images, seed=0)
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    inputs = torch.randn(images, *example.shape[1:], generator=generator)
    return [(inputs, torch.randint(10, (images,), generator=generator))]


def _judge(graph: Any, kept: Any, samples: Any, held_out: list[Batch], device: torch.device) -> dict[str, float]:
    """The network that keeps these units, before tuning: physically smaller, in float32."""
    found = {}
    for name, batches in (("search", collate(samples, 500, device)), ("validation", held_out)):
        found[f"{name}_loss"] = SlicingEvaluator(graph, batches, cross_entropy).loss(kept)
        found[f"{name}_accuracy"] = 1 - SlicingEvaluator(graph, batches, top1_error).loss(kept)
    counts = np.array([len(units) for units in kept])
    return {**found, "macs_share": float(graph.cost.macs(counts)) / graph.macs}


def _line(method: str, choice: Choice, results: dict[str, Any]) -> str:
    made = results[method]
    parts = ", ".join(f"{name} {value:.2f}" for name, value in choice.seconds.items() if name != "total")
    difference = abs(made["found"]["search_loss"] - results["whole"]["search_loss"])
    return (
        f"{method}: {made['seconds']:.2f} s for {results['candidates']} candidates, {made['evaluations']} networks "
        f"judged, the whole one among them ({parts}); found a loss difference of {difference:.4f}, accuracy before "
        f"tuning {made['found']['search_accuracy']:.2%} on the search's images, "
        f"{made['found']['validation_accuracy']:.2%} on validation images (whole network "
        f"{results['whole']['validation_accuracy']:.2%})"
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
