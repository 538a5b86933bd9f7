"""How long one search takes, and where the time goes: planning, preparing, evaluating.

    python benchmarks/search.py                                            # this machine's defaults
    python benchmarks/search.py --variants zero zero+plain --precisions fp32 bf16 --data cifar10:PATH \\
        --weights examples/resnet56-cifar10.safetensors --candidates 400 200 800 --images 3000 1000 --macs 0.5 0.3
    python benchmarks/search.py --networks torchvision:resnet50 --images 500 --candidates 100 --append

Every list's first entry is the base; the others are measured one at a time against it. Variants:

    slice      a physically smaller network per candidate, batch norm folded, channels last, a batch per core (the
               default on a CPU); slice+nchw without the layout
    zero       one persistent folded copy, weights silenced in place, convolutions joined with what follows them,
               channels last, CUDA graph (the default on a GPU)
    zero+...   options of it, joined by "+": plain (nothing joined), cl (channels last all the same),
               eager (no CUDA graph), bn (not folded)
    repair     candidates are judged after repair, as `prune` does by default; statistics: after new statistics
    rebuild    baseline: copy the network, cut the copy, run it; nothing folded
    mask       baseline: the full-size network with masks multiplied into what each layer reads

Capture is counted; kernels are compiled in a search of three candidates that warms the process for each precision.
Random images serve as well as real ones for timing; `--data` and `--weights` (for the first network) search in earnest.
`error` is how far losses are from those in float64, by share, the worst of five selections.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import choosing, models
from lcprune import data as datasets
from lcprune.batches import Batch, arithmetic, collate, draw
from lcprune.engine import LocalEngine
from lcprune.evaluate import Evaluator, SlicingEvaluator, ZeroingEvaluator
from lcprune.evaluate.evaluator import mean_loss
from lcprune.evaluate.make import default_batch_size
from lcprune.evaluate.switchboard import read_positions
from lcprune.files import write_json
from lcprune.latency.backends import device_name
from lcprune.select import Kept, Limits
from lcprune.task import Task

RESULTS = Path(__file__).parent / "results"
AFTER = ("repair", "statistics")  # variants that are not judged as cut


class Rebuild(Evaluator):
    """Copy the network, cut the copy, run it."""

    def compute(self, kept: Kept) -> float:
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

    def compute(self, kept: Kept) -> float:
        started = time.perf_counter()
        self.flags[:-1] = torch.from_numpy(self._mask(kept)).to(self.flags)
        started = self._timed("preparing", started)
        with arithmetic(), torch.inference_mode():
            value = float(mean_loss(self.model, self.batches, self.loss_fn))
        self._timed("evaluating", started)
        return value


class Given(LocalEngine):
    """Judges with an evaluator that is there already."""

    def __init__(self, judge: Evaluator) -> None:
        self.judge = judge

    def evaluator(self, graph: Any, samples: Any, how: lcprune.Evaluation, quick: Any = None) -> Evaluator:
        return self.judge


def make(variant: str, precision: str, graph: Any, batches: list[Batch]) -> Evaluator:
    """The evaluator of a variant."""
    name, *options = variant.split("+")
    if name == "rebuild":
        return Rebuild(graph, batches, cross_entropy)
    if name == "mask":
        return Mask(graph, batches, cross_entropy)
    if name == "slice":
        last = "nchw" not in options and batches[0].inputs.device.type == "cpu"
        return SlicingEvaluator(graph, batches, cross_entropy, channels_last=last, precision=precision)
    return ZeroingEvaluator(
        graph,
        batches,
        cross_entropy,
        precision=precision,
        fold="bn" not in options,
        capture="eager" not in options,
        channels_last=True if "cl" in options else None,
        fuse=False if "plain" in options else None,
    )


def worst_error(evaluator: Evaluator, batches: list[Batch], count: int = 5) -> float:
    """The largest relative distance of losses from those of the physically pruned network in float64."""
    rng = np.random.default_rng(0)
    groups = evaluator.graph.groups
    worst = 0.0
    for _ in range(count):
        kept = [np.sort(rng.permutation(group.size)[: rng.integers(1, group.size + 1)]) for group in groups]
        model = evaluator.graph.plan(kept).apply(evaluator.graph.model).eval().double()
        halves = [
            Batch(batch.inputs[start : start + 500].double(), batch.target[start : start + 500], 500)
            for batch in batches
            for start in range(0, batch.size, 500)
        ]
        exact = [Batch(batch.inputs, batch.target, len(batch.target)) for batch in halves]
        with torch.inference_mode():
            reference = float(mean_loss(model, exact, evaluator.loss_fn))
        worst = max(worst, abs(evaluator.loss(kept) / reference - 1))
    return worst


def shared_prefix(graph: Any, counts: Sequence[Sequence[int]]) -> float:
    """Share of all candidates' layers that had been run before with the same input: what a cache could save.

    Candidates keep the best units of each group, so counts say which. Layers are taken in the order of the
    network, so this holds for networks that run as one chain of blocks.
    """
    layers: dict[str, set[int]] = {}
    for index, group in enumerate(graph.groups):
        for member in group.members:
            if member.role in ("in", "out"):
                layers.setdefault(member.weight, set()).add(index)
    ordered = [sorted(layers[name]) for name, _ in graph.model.named_parameters() if name in layers]
    seen: set[tuple[Any, ...]] = set()
    shared = 0
    for candidate in counts:
        prefix: tuple[Any, ...] = ()
        for groups in ordered:
            prefix = (*prefix, *(candidate[index] for index in groups))
            shared += prefix in seen
            seen.add(prefix)
    return shared / (len(ordered) * len(counts))


def measure(base: dict[str, Any], options: argparse.Namespace, cache: dict[str, Any]) -> dict[str, Any]:
    """One search."""
    network, images = base["network"], base["images"]
    if network not in cache:
        torch.manual_seed(0)
        weights = options.weights if network == options.networks[0] else None
        model = models.build(network, num_classes=10 if ":" not in network else None, weights=weights)
        model = model.eval().to(options.device)
        example = models.example_input(network).to(options.device)
        cache[network] = model, lcprune.trace(model, example), example
    model, graph, example = cache[network]
    if options.data and network == options.networks[0]:
        samples = draw(datasets.load(options.data, seed=0).batches("train", 500), images, seed=0)
    else:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(images, *example.shape[1:], generator=generator)
        samples = list(zip(inputs, torch.randint(10, (images,), generator=generator), strict=True))
    size = base["batch_size"] or default_batch_size(graph, images, torch.device(options.device))
    batches = collate(samples, size, options.device)
    pool = min(64, max(2, base["candidates"] // 6))
    search = lcprune.Search(pool=pool, iterations=base["candidates"] - pool)
    variant, precision = base["variant"], base["precision"]
    how = lcprune.Evaluation(
        images=images,
        after=variant if variant in AFTER else "cut",
        precision=precision,
        batch_size=base["batch_size"] or None,
    )
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    engine = LocalEngine() if variant in AFTER else Given(make(variant, precision, graph, batches))
    metric = lcprune.LcP().own_metric(how)
    task = Task(graph, Limits(macs=base["macs"]), metric, samples, evaluation=how, engine=engine)
    setup = time.perf_counter() - started
    found = choosing.learn(task, search).found
    total = time.perf_counter() - started
    work = task.evaluator.work
    return {
        **{name: value for name, value in base.items() if name != "judge"},
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
        "error": worst_error(task.evaluator, batches) if base.get("judge") and variant not in AFTER else None,
        "shared_prefix": shared_prefix(graph, [record.counts for record in found.history]),
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
            ours = variant.startswith(("zero", "slice", *AFTER))
            for precision in options.precisions if ours else ["fp32"]:
                sizes = options.batch_sizes if index == 0 else options.batch_sizes[:1]
                more = {"variant": variant, "precision": precision, "judge": index == 0}
                made += [{**one, **more, "batch_size": size} for size in sizes]
    return made


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--networks", nargs="+", default=["resnet56"])
    parser.add_argument("--macs", nargs="+", type=float, default=[0.5 if gpu else 0.3])
    parser.add_argument("--candidates", nargs="+", type=int, default=[400 if gpu else 60])
    parser.add_argument("--images", nargs="+", type=int, default=[3000 if gpu else 256])
    parser.add_argument("--variants", nargs="+", default=["zero" if gpu else "slice", "rebuild", "mask"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[0], help="0 lets lcprune choose")
    parser.add_argument("--data", help="e.g. cifar10:PATH; random images if not given")
    parser.add_argument("--weights", help="a file of weights for the first network named")
    parser.add_argument("--append", action="store_true", help="add rows to the file that is there")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    cache: dict[str, Any] = {}
    results = {
        "what": "time of one search",
        "machine": device_name(torch.device(options.device)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [],
    }
    out = options.out or RESULTS / f"search-{torch.device(options.device).type}.json"
    if options.append and out.exists():
        results["rows"] = json.loads(out.read_text())["rows"]
    columns = ("network", "macs", "candidates", "images", "variant", "precision", "batch_size")
    times = ("total_s", "setup_s", "planning_s", "preparing_s", "evaluating_s")
    print("  ".join((*columns, *times, "evaluations", "difference", "error")))
    warm: set[str] = set()
    for base in rows(options):
        if base["precision"] not in warm:
            measure({**base, "judge": False, "candidates": 3, "images": min(64, base["images"])}, options, cache)
            warm.add(base["precision"])
        row = measure(base, options, cache)
        results["rows"].append(row)
        shown = [str(row[name]) for name in columns] + [f"{row[name]:.3f}" for name in times]
        error = "" if row["error"] is None else f"{row['error']:.1e}"
        print("  ".join((*shown, str(row["evaluations"]), f"{row['difference']:.6f}", error)), flush=True)
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
