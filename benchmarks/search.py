"""How long one search takes, and where the time goes: planning, preparing, evaluating.

    python benchmarks/search.py                                            # this machine's defaults
    python benchmarks/search.py --variants zero mask rebuild --precisions fp32 bf16 --candidates 400
    python benchmarks/search.py --networks resnet56 vgg16 --macs 0.5 0.3 --images 3000 1000

Every list's first entry is the base; the others are measured one at a time against it. Variants:

    slice      a physically smaller network per candidate, batch norm folded, channels last (the default on a
               CPU); slice+nchw without the last
    zero       one persistent folded copy, weights silenced in place, CUDA graph; channels first (the default on a
               GPU, but for bf16: there it is zero+cl)
    zero+...   options of it, joined by "+": cl (channels last), bench (cuDNN times its algorithms first),
               fuse (convolution, addition and ReLU in one kernel), eager (no CUDA graph), bn (not folded)
    rebuild    baseline: copy the network, cut the copy, run it; nothing folded
    mask       baseline: the full-size network with masks multiplied into what each layer reads

Capture is counted; a short search warms the process first. Random images serve as well as real ones for
timing; `--data cifar10:PATH --weights FILE` searches in earnest.
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import data as datasets
from lcprune import methods, models
from lcprune.evaluate import Batch, Evaluator, SlicingEvaluator, ZeroingEvaluator, collate, draw
from lcprune.evaluate.evaluator import Kept, arithmetic, mean_loss
from lcprune.evaluate.make import default_batch_size
from lcprune.evaluate.switchboard import read_positions
from lcprune.files import write_json
from lcprune.select import Limits
from lcprune.task import Task

RESULTS = Path(__file__).parent / "results"


class Rebuild(Evaluator):
    """Copy the network, cut the copy, run it."""

    def _compute(self, kept: Kept) -> float:
        started = time.perf_counter()
        model = self.graph.plan(list(kept)).apply(copy.deepcopy(self.graph.model)).eval()
        started = self._timed("preparing", started)
        with arithmetic(), torch.inference_mode():
            value = float(mean_loss(model, self.batches, self.loss_fn))
        self._timed("evaluating", started)
        return value


class Mask(Evaluator):
    """The full-size network; what each convolution or linear layer reads is multiplied by a mask first."""

    def __init__(self, graph: Any, batches: Sequence[Batch], loss_fn: Any) -> None:
        super().__init__(graph, batches, loss_fn)
        self.model = copy.deepcopy(graph.model).eval()
        device = next(self.model.parameters()).device
        units = int(sum(group.size for group in graph.groups))
        self.flags = torch.ones(units + 1, device=device)
        modules = dict(self.model.named_modules())
        for weight, (_, positions) in read_positions(graph, self.model).items():
            module = modules[weight.rpartition(".")[0]]
            assert getattr(module, "groups", 1) == 1, "the mask baseline knows no grouped convolutions"
            module.register_forward_pre_hook(self._hook(torch.as_tensor(positions, device=device)))

    def _hook(self, positions: torch.Tensor) -> Any:
        def multiply(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            mask = self.flags[positions]
            return (inputs[0] * (mask.view(1, -1, 1, 1) if inputs[0].ndim == 4 else mask),)

        return multiply

    def _compute(self, kept: Kept) -> float:
        started = time.perf_counter()
        self.flags[:-1] = torch.from_numpy(self._mask(kept)).to(self.flags)
        started = self._timed("preparing", started)
        with arithmetic(), torch.inference_mode():
            value = float(mean_loss(self.model, self.batches, self.loss_fn))
        self._timed("evaluating", started)
        return value


def make(variant: str, precision: str, graph: Any, batches: list[Batch]) -> Evaluator:
    """The evaluator of a variant."""
    name, *options = variant.split("+")
    if name == "rebuild":
        return Rebuild(graph, batches, cross_entropy)
    if name == "mask":
        return Mask(graph, batches, cross_entropy)
    if name == "slice":
        last = "nchw" not in options and batches[0].inputs.device.type == "cpu"
        return SlicingEvaluator(graph, batches, cross_entropy, channels_last=last)
    return ZeroingEvaluator(
        graph,
        batches,
        cross_entropy,
        precision=precision,
        fold="bn" not in options,
        capture="eager" not in options,
        channels_last="cl" in options,
        benchmark="bench" in options,
        fuse="fuse" in options,
    )


def measure(base: dict[str, Any], options: argparse.Namespace, cache: dict[str, Any]) -> dict[str, Any]:
    """One search."""
    network, images = base["network"], base["images"]
    if network not in cache:
        torch.manual_seed(0)
        model = models.build(network, num_classes=10 if ":" not in network else None, weights=options.weights)
        model = model.eval().to(options.device)
        example = models.example_input(network).to(options.device)
        cache[network] = model, lcprune.trace(model, example), example
    model, graph, example = cache[network]
    if options.data:
        samples = draw(datasets.load(options.data, seed=0).batches("train", 500), images, seed=0)
    else:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(images, *example.shape[1:], generator=generator)
        samples = list(zip(inputs, torch.randint(10, (images,), generator=generator), strict=True))
    size = base["batch_size"] or default_batch_size(graph, images, torch.device(options.device))
    batches = collate(samples, size, options.device)
    pool = min(64, max(2, base["candidates"] // 6))
    search = lcprune.Search(pool=pool, iterations=base["candidates"] - pool, images=images)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    task = Task(graph, Limits(macs=base["macs"]), samples=samples, search=search)
    task.evaluator = make(base["variant"], base["precision"], graph, batches)
    setup = time.perf_counter() - started
    found = methods.learn(task)
    total = time.perf_counter() - started
    work = task.evaluator.work
    return {
        **base,
        "batch_size": size,
        "total_s": total,
        "setup_s": setup,
        "planning_s": found.planning,
        "preparing_s": work.preparing,
        "evaluating_s": work.evaluating,
        "other_s": total - found.planning - work.preparing - work.evaluating,
        "evaluations": work.evaluations,
        "captures": work.captures,
        "sliced": work.sliced,
        "difference": found.difference,
        "naive_difference": found.naive,
        "kept": [len(units) for units in found.kept],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
    }


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The base with every variant, precision and batch size; then one thing changed at a time."""
    names = {
        "network": options.networks,
        "macs": options.macs,
        "candidates": options.candidates,
        "images": options.images,
    }
    base = {name: values[0] for name, values in names.items()}
    bases = [base] + [{**base, name: value} for name, values in names.items() for value in values[1:]]
    made = []
    for index, one in enumerate(bases):
        for variant in options.variants if index == 0 else options.variants[:1]:
            zero = variant.startswith("zero")
            for precision in options.precisions if zero else ["fp32"]:
                sizes = options.batch_sizes if index == 0 else options.batch_sizes[:1]
                made += [{**one, "variant": variant, "precision": precision, "batch_size": size} for size in sizes]
    return made


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--networks", nargs="+", default=["resnet56"])
    parser.add_argument("--macs", nargs="+", type=float, default=[0.5 if gpu else 0.3])
    parser.add_argument("--candidates", nargs="+", type=int, default=[400 if gpu else 20])
    parser.add_argument("--images", nargs="+", type=int, default=[3000 if gpu else 200])
    parser.add_argument("--variants", nargs="+", default=["zero" if gpu else "slice", "rebuild", "mask"])
    parser.add_argument("--precisions", nargs="+", default=["fp32"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[0], help="0 lets lcprune choose")
    parser.add_argument("--data", help="e.g. cifar10:PATH; random images if not given")
    parser.add_argument("--weights", help="a file of weights for every network named")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    cache: dict[str, Any] = {}
    results = {
        "what": "time of one search",
        "machine": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [],
    }
    out = options.out or RESULTS / f"search-{torch.device(options.device).type}.json"
    columns = ("network", "macs", "candidates", "images", "variant", "precision", "batch_size")
    times = ("total_s", "setup_s", "planning_s", "preparing_s", "evaluating_s")
    print("  ".join((*columns, *times, "evaluations", "difference")))
    for index, base in enumerate(rows(options)):
        if index == 0:
            measure({**base, "candidates": 3, "images": min(64, base["images"])}, options, cache)  # warms up
        row = measure(base, options, cache)
        results["rows"].append(row)
        shown = [str(row[name]) for name in columns] + [f"{row[name]:.3f}" for name in times]
        print("  ".join((*shown, str(row["evaluations"]), f"{row['difference']:.6f}")), flush=True)
        write_json(out, _finite(results))
    print(f"written: {out}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


if __name__ == "__main__":
    main()
