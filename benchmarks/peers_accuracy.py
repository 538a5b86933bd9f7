"""Accuracy beside Torch-Pruning, before and after tuning: `peers.py imagenet` and `peers.py tune`.

Torch-Pruning prunes as its guide does: in many small steps until the limit is met, the classifier left out, and at
least a tenth of every layer kept, as with lcprune:

    tp-magnitude  GroupMagnitudeImportance(p=2), all channels in one ranking; GroupNormPruner without sparse training
                  makes the same cuts
    tp-lamp       LAMPImportance(p=2), one ranking
    tp-taylor     GroupTaylorImportance(), one ranking, by gradients on the labelled images of lcprune's search
    tp-uniform    GroupMagnitudeImportance(p=2), the same share of every layer
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import imagenet
import numpy as np
import torch
from repair import mean
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import lcprune
from lcprune import data, models, tune

HERE = Path(__file__).resolve().parent
RESULTS = {what: HERE / "results" / f"peers_{what}.json" for what in ("imagenet", "tune")}
FLOOR = 0.1
STEPS = 400
WORDS = {
    "tp-magnitude": "Torch-Pruning, group magnitude",
    "tp-lamp": "Torch-Pruning, LAMP",
    "tp-taylor": "Torch-Pruning, Taylor",
    "tp-uniform": "Torch-Pruning, the same share everywhere",
    "naive": "lcprune, naive",
    "affine": "lcprune, LcP, affine",
    "lcp": "lcprune, LcP",
}
METHODS = {
    "imagenet": ("tp-magnitude", "tp-lamp", "tp-taylor", "tp-uniform", "affine"),  # naive and lcp: imagenet.py measure
    "tune": ("tp-magnitude", "tp-taylor", "naive", "affine", "lcp"),
}
LIMITS = {"imagenet": ("85%", "70%", "58%", "50%"), "tune": ("50%", "30%")}


def peer() -> str:
    """Which Torch-Pruning this is."""
    import torch_pruning

    try:
        return f"Torch-Pruning {version('torch-pruning')}"
    except PackageNotFoundError:  # a plain folder
        return f"Torch-Pruning {torch_pruning.__version__}"


def peer_plans(
    graph: Any, method: str, limits: Sequence[str], batches: Iterable[Any], ignored: Callable[[nn.Module], Any]
) -> Iterator[tuple[str, lcprune.Plan, float]]:
    """What Torch-Pruning keeps at each limit, the loosest first, as a plan; and the seconds so far."""
    import torch_pruning

    rankings = torch_pruning.importance
    magnitude = rankings.GroupMagnitudeImportance(p=2)
    others = {"tp-lamp": rankings.LAMPImportance(p=2), "tp-taylor": rankings.GroupTaylorImportance()}
    began = time.perf_counter()
    small = copy.deepcopy(graph.model)
    if method == "tp-taylor":
        for images, labels in batches:
            functional.cross_entropy(small(images), labels).backward()
    norms = {name: module for name, module in small.named_modules() if isinstance(module, nn.BatchNorm2d)}
    for norm in norms.values():  # no ranking reads means: here they say which channels are left
        norm.running_mean.copy_(torch.arange(norm.num_features))
    pruner = torch_pruning.pruner.BasePruner(
        small,
        graph.example_inputs[0],
        importance=others.get(method, magnitude),
        global_pruning=method != "tp-uniform",
        pruning_ratio=1.0,
        max_pruning_ratio=1 - FLOOR,
        iterative_steps=STEPS,
        ignored_layers=ignored(small),
    )
    for limit in sorted(limits, key=lambda limit: -float(limit.rstrip("%"))):
        while (share := _share(graph, kept := _kept(graph, norms))) > float(limit.rstrip("%")) / 100:
            if pruner.current_step == STEPS:
                raise RuntimeError(f"{method} does not reach {limit}: {share:.1%} is the least")
            pruner.step()
        seconds = time.perf_counter() - began
        plan = graph.plan(kept)
        _check_same(plan.apply(graph.model), small)
        yield limit, plan, round(seconds, 2)


def _share(graph: Any, kept: dict[str, np.ndarray]) -> float:
    """Of the MACs."""
    return graph.cost.macs(np.array([len(units) for units in kept.values()])) / graph.macs


def _kept(graph: Any, norms: dict[str, nn.BatchNorm2d]) -> dict[str, np.ndarray]:
    """Of each group, the units whose channels are left."""
    kept = {}
    for group in graph.groups:
        mean = next(member for member in group.members if member.weight.endswith(".running_mean"))
        left = norms[mean.weight.removesuffix(".running_mean")].running_mean.long().cpu().numpy()
        kept[group.name] = np.flatnonzero(np.isin(mean.index, left).all(axis=1))
    return kept


def _check_same(ours: nn.Module, theirs: nn.Module) -> None:
    """The plan makes Torch-Pruning's own network, number by number."""
    other = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        if not name.endswith(".running_mean") and not torch.equal(tensor, other[name]):
            raise RuntimeError(f"{name} is not what Torch-Pruning cut")


def of_imagenet(options: argparse.Namespace) -> None:
    """Peers and the affine ranking at every limit, as cut and repaired; naive and LcP are rows of imagenet.py."""
    imagenet.measure(options, planned)


def planned(
    options: argparse.Namespace, graph: Any, dataset: data.Dataset, method: str, limit: str, seed: int
) -> tuple[lcprune.Plan, float]:
    """As `imagenet.planned`; Torch-Pruning meets all limits on one way down."""
    if not method.startswith("tp-"):
        return imagenet.planned(options, graph, dataset, method, limit, seed)
    file = imagenet.plan_file(options, method, limit, seed)
    if not file.exists():
        batches = dataset.batches("train", 100, limit=options.images, seed=seed, device=options.device)
        ignored = classifier_and_streams if options.network == "resnet56" else classifier
        for met, plan, seconds in peer_plans(graph, method, options.limits, batches, ignored):
            file.parent.mkdir(parents=True, exist_ok=True)
            plan.with_meta(benchmark_seconds=seconds, peer=peer()).save(imagenet.plan_file(options, method, met, seed))
    plan = lcprune.Plan.load(file)
    return plan, plan.meta["benchmark_seconds"]


def classifier(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def classifier_and_streams(model: nn.Module) -> list[nn.Module]:
    """Also what feeds ResNet-56's sums: Torch-Pruning cannot follow its shortcuts, which append zero channels."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or name == "conv1" or name.endswith(".conv2")
    ]


def of_tuning(options: argparse.Namespace) -> None:
    """ResNet-56 on CIFAR-10: every method, limit and seed as one fleet. Each seed has a baseline of its own."""
    options.network = "resnet56"
    dataset = data.load(f"cifar10:{options.data}", seed=0, val=options.val)
    if options.train:  # a trial
        parts = {name: getattr(dataset, name).subset(range(options.train)) for name in ("train", "test")}
        dataset = replace(dataset, **parts)
    rows, plans, networks = [], [], []
    for seed in options.seeds:
        model = models.build("resnet56", num_classes=10)
        stored = load_file(options.weights / f"resnet56-seed-{seed}.safetensors")
        model.load_state_dict({name: value.to(model.state_dict()[name].dtype) for name, value in stored.items()})
        model.to(options.device).eval()
        if not imagenet.has(options, "full", network="resnet56", seed=seed):
            imagenet.add(options, "full", {"network": "resnet56", "seed": seed, **judged(model, dataset, options)})
        graph = lcprune.trace(model, models.example_input("resnet56").to(options.device))
        for method in options.methods:
            for limit in options.limits:
                row = {"network": "resnet56", "method": method, "limit": limit, "seed": seed}
                row["metric"] = imagenet.metric_of(options, method)
                if imagenet.has(options, "tune", **row):
                    continue
                plan, seconds = planned(options, graph, dataset, method, limit, seed)
                network = plan.apply(model)
                before = judged(network, dataset, options)["accuracy"]
                row["candidates"] = options.candidates if method in imagenet.SEARCHES else None
                rows.append(row | {"macs": plan.macs / graph.macs, "search_seconds": seconds, "before": before})
                plans.append(plan)
                networks.append(network)
                print(rows[-1], flush=True)
    if not rows:
        return
    precision = "bf16" if options.device == "cuda" else "fp32"
    recipe = tune.recipe("finetune", epochs=options.epochs, precision=precision, eval_every=options.epochs)
    began = time.perf_counter()
    results = tune.fit_fleet(
        model, plans, dataset, recipe, models=networks, seeds=[row["seed"] for row in rows], device=options.device
    )
    seconds = round(time.perf_counter() - began, 1)
    for row, result in zip(rows, results, strict=True):
        done = {"epochs": options.epochs, "fleet": len(rows), "fleet_seconds": seconds}
        imagenet.add(options, "tune", row | done | judged(result.model.float(), dataset, options))


def judged(model: nn.Module, dataset: data.Dataset, options: argparse.Namespace) -> dict[str, float]:
    """Accuracy on the test images."""
    return {"accuracy": float(tune.evaluate(model, dataset, "test", device=options.device).accuracy)}


def show_imagenet(record: dict[str, Any], ours: dict[str, Any]) -> None:
    """Top-1 without training, beside what imagenet.py measured."""
    for full in record.get("full", []):
        mine = [
            row
            for row in [*record.get("measure", []), *ours.get("measure", [])]
            if row["network"] == full["network"] and row["method"] in WORDS
        ]
        ways = [how for how in ("none", *imagenet.WAYS) if imagenet.rows_of(mine, how=how)]
        print(f"\n**{imagenet.NETWORKS[full['network']][2]}**, {100 * full['accuracy']:.1f} %\n")
        heads = " | ".join(imagenet.WORDS[how] for how in ways)
        print(f"| MACs | method | {heads} |\n|---|---|" + "---|" * len(ways))
        for limit in LIMITS["imagenet"]:
            for method, words in WORDS.items():
                rows = imagenet.rows_of(mine, limit=limit, method=method, multiple_of=None)
                cells = [mean(imagenet.rows_of(rows, how=how), "accuracy") for how in ways]
                if rows:
                    print(f"| {limit.replace('%', ' %')} | {words} | " + " | ".join(cells) + " |")


def show_tuning(record: dict[str, Any]) -> None:
    """Before and after tuning, over the seeds."""
    rows = record.get("tune", [])
    if rows:
        print(f"\nResNet-56 on CIFAR-10, {mean(record['full'], 'accuracy')} %, {rows[0]['epochs']} epochs\n")
        print("| MACs | method | MACs left | as cut | tuned |\n|---|---|---|---|---|")
    for limit in LIMITS["tune"]:
        for method, metric in sorted({(row["method"], row["metric"]) for row in rows}, key=_turn):
            own = imagenet.rows_of(rows, limit=limit, method=method, metric=metric)
            words = WORDS[method] + (f", `{metric}`" if method in imagenet.OWN else "")
            if own:
                cells = [mean(own, key) for key in ("macs", "before", "accuracy")]
                print(f"| {limit.replace('%', ' %')} | {words} | " + " | ".join(cells) + " |")


def _turn(kind: tuple[str, str]) -> tuple[int, str]:
    """Where a method and its metric stand in the table."""
    return list(WORDS).index(kind[0]), kind[1]
