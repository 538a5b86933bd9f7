"""What a latency limit is worth: the loss before tuning at equal measured latency, on real data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import choosing, latency, models
from lcprune import data as datasets
from lcprune.evaluate import draw
from lcprune.latency.clock import Clock
from lcprune.latency.hold import hold
from lcprune.latency.limit import tightened
from lcprune.search import Search
from lcprune.select import Limits
from lcprune.select.limits import Extra
from lcprune.task import Kept, Task
from lcprune.tune import evaluate

ROOT = Path(__file__).parents[1]
WAYS = ("lcp by latency", "lcp by MACs", "naive", "uniform")
LEARNED = WAYS[:2]
WEIGHTS = {"resnet56": ROOT / "examples" / "resnet56-cifar10.safetensors"}
# Every network, backend and batch size is held to all of these, and all are reported: nothing is picked by its losses.
SHARES = (0.9, 0.8, 0.7, 0.6)
SEEDS = (0, 1, 2)
# kind of device -> network -> (backends, batch sizes, candidates, images)
LOSSES: dict[str, dict[str, tuple[tuple[str, ...], tuple[int, ...], int, int]]] = {
    "cpu": {"digits_resnet": (("eager", "onnx"), (1, 64), 100, 1000), "resnet56": (("eager",), (1,), 60, 256)},
    "cuda": {"resnet56": (("cudagraph",), (64, 1), 100, 2000)},
}


def losses(
    network: str, backend: str, batch: int, device: str, data: str, candidates: int, images: int
) -> dict[str, Any]:
    """Loss before tuning at equal measured latency; a seed is that of images, search and the digits' network."""
    dataset = datasets.load(data)
    rows: list[dict[str, Any]] = []
    clock: Clock | None = None
    for seed in SEEDS:
        own = network not in WEIGHTS  # one network for all seeds, or one each
        model = trained(network, dataset, device, seed)
        graph = lcprune.trace(model, models.example_input(network).to(device))
        # The table does not depend on weights: it is measured once, and then comes from the cache.
        clock = latency.make_clock(graph, batch=batch, backend=backend, multiple_of="auto", progress=False)
        if own or seed == SEEDS[0]:
            plain = evaluate(model, dataset, "test", device=device)
            rows.append({"method": "original", "seed": seed, "loss": plain[0], "accuracy": plain[1]})
        whole = task_of(graph, clock, dataset, device, candidates, images, seed)
        ways = WAYS if own or seed == SEEDS[0] else LEARNED
        every = [at_latency(whole, clock, share, way, dataset, device) for share in SHARES for way in ways]
        rows += [{"seed": seed, **row} for row in every]
    assert clock is not None
    return {
        "rows": rows,
        "candidates": candidates,
        "images": images,
        "multiple_of": clock.width,
        "whole_ms": clock.whole,
    }


def task_of(graph: Any, clock: Clock, dataset: Any, device: str, candidates: int, images: int, seed: int) -> Task:
    """A task with the images, on training images alone; its limits are set later."""
    pool = min(64, candidates // 4)
    sizes = {"pool": pool, "iterations": candidates - pool, "sample": max(2, pool // 4), "images": images}
    search = Search(**sizes, recalibrate=False)
    samples = draw(dataset.batches("train", 128, limit=images, seed=seed, device=device), images, seed)
    return Task(
        graph,
        Limits(macs=1.0),
        samples=samples,
        loss_fn=cross_entropy,
        search=search,
        multiple_of=clock.width,
        seed=seed,
    )


def at_latency(whole: Task, clock: Clock, share: float, method: str, dataset: Any, device: str) -> dict[str, Any]:
    """One method's network at one latency: measured, and cut further while it is above."""
    graph = whole.graph
    limits = Limits(extra={"latency_ms": Extra(clock.predict, share, clock.whole)})
    task = with_limits(whole, limits)
    row: dict[str, Any] = {"method": method, "share": share}
    beta: NDArray[np.float64] | None = None
    started = time.perf_counter()
    try:
        if method == "lcp by latency":
            beta = choosing.learn(task).beta
        elif method == "lcp by MACs":
            # As many MACs as naive pruning has at this latency: the search is about as deep as the other one.
            naive = task.ranking.counts(limits)
            beta = choosing.learn(with_limits(whole, Limits(macs=float(graph.cost.macs(naive)) / graph.macs))).beta

        def select(some: Limits) -> Kept:
            return task.ranking.uniform(some) if method == "uniform" else task.ranking.select(some, beta=beta)

        def cut(kept: Kept) -> tuple[Any, Any]:
            plan = graph.plan(kept)
            return plan, plan.apply(graph.model)

        plan, smaller, outcome = hold(
            clock, f"{100 * share:g}%", select(limits), cut, lambda ms: select(tightened(limits, clock, ms))
        )
    except lcprune.BudgetError as error:
        return {**row, "cannot": str(error)}
    loss, accuracy = evaluate(smaller, dataset, "test", device=device)[:2]
    return {
        **row,
        "train_loss": whole.evaluator.loss([np.array(units) for units in plan.kept.values()]),
        "loss": float(loss),
        "accuracy": float(accuracy),
        "macs_share": plan.macs / plan.original_macs,
        "latency": outcome.to_json(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def with_limits(task: Task, limits: Limits) -> Task:
    """The same task under other limits, with the scores and losses that it has."""
    other = replace(task, limits=limits)
    other.scores, other.evaluator = task.scores, task.evaluator
    return other


def trained(network: str, dataset: Any, device: str, seed: int) -> Any:
    """The network with its weights; the one for digits is trained here, in seconds."""
    if network in WEIGHTS:
        from safetensors.torch import load_file

        model = models.build(network, num_classes=dataset.num_classes)
        model.load_state_dict(load_file(WEIGHTS[network]))
        return model.to(device).eval()
    from lcprune.tune import fit as train
    from lcprune.tune import recipe

    torch.manual_seed(seed)
    model = models.build(network, num_classes=dataset.num_classes)
    settings = recipe("baseline", epochs=15, batch_size=64, schedule="cosine", seed=seed)
    train(model, dataset, settings, progress=False, device=device)
    return model.to(device).eval()


def over_seeds(rows: Sequence[dict[str, Any]], share: float, way: str) -> dict[str, Any]:
    """One way at one latency: mean and spread of the loss over seeds, and of the share that was measured."""
    ones = [row for row in rows if row.get("share") == share and row["method"] == way]
    done = [row for row in ones if "loss" in row]
    found = {
        "runs": len(ones),
        "cannot": len(ones) - len(done),
        "missed": sum(not row["latency"]["met"] for row in done),
    }
    if not done:
        return found
    loss = [row["loss"] for row in done]
    measured = [row["latency"]["measured_ms"] / row["latency"]["original_ms"] for row in done]
    return {
        **found,
        "loss": float(np.mean(loss)),
        "deviation": float(np.std(loss)),
        "measured": float(np.mean(measured)),
    }
