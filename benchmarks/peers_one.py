"""One network, cut to half of its MACs by one library and checked by a third party; called by peers.py.

The check knows nothing of either library. Every number of the network is given a value of its own, so that each number
of the cut network tells where in the original it was. The original with all other numbers set to zero must give the
same outputs as the cut network. That holds wherever nothing is normalised over channels: peers.py leaves out networks
where something is.
"""

from __future__ import annotations

import copy
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from coverage_one import build, counted_macs, enliven, smallest_input
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lcprune

TARGET = 0.5
FLOOR = 0.1
STEPS = 50


def main(record: dict[str, Any], out: Path, seconds: int, memory_gb: float) -> None:
    """Write the record of one network and tool; a process that takes more seconds of a core than these is killed."""
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_gb * 2**30),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    torch.set_num_threads(1)
    try:
        measure(record)
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    out.write_text(json.dumps(record))


def measure(record: dict[str, Any]) -> None:
    """Fill the record; `verdict` is the stage that failed, or how it ended."""
    torch.manual_seed(0)
    model, shape = build(record["model"], record["kind"])
    model.eval()
    inputs = smallest_input(model, shape, record["kind"])
    enliven(model, inputs)
    model, inputs = model.double(), tuple(x.double() for x in inputs)
    tell_apart(model)
    with torch.no_grad():
        before = tree_leaves(model(*inputs))
    whole = counted_macs(model, inputs)
    warm = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    TOOLS[record["tool"]]({}, warm, (torch.randn(1, 3, 8, 8),), [torch.empty(1, 2)])  # imports that a process pays once
    record["verdict"] = "cut"
    smaller = TOOLS[record["tool"]](record, model, inputs, before)
    record["verdict"] = "run"
    with torch.no_grad():
        after = tree_leaves(smaller(*inputs))
    record["macs"] = counted_macs(smaller, inputs) / whole
    record["verdict"] = "output shapes"
    assert [x.shape for x in after] == [x.shape for x in before], f"{[tuple(x.shape) for x in after]}"
    record["verdict"] = "weights"
    twin = silenced(model, smaller)
    with torch.no_grad():
        expected = tree_leaves(twin(*inputs))
    record["verdict"] = "outputs"
    scale = max(float(x.abs().max()) for x in expected)
    record["error_share"] = max(float((a - b).abs().max()) for a, b in zip(after, expected, strict=True)) / scale
    assert record["error_share"] < 1e-8, f"outputs differ by {record['error_share']:.1e} of the largest"
    record["verdict"] = "right" if record["macs"] <= TARGET else "too large"


def numbers(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and statistics by name."""
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


@torch.no_grad()
def tell_apart(model: nn.Module) -> None:
    """Change every number by a hair, so that no two of a tensor are equal."""
    generator = torch.Generator().manual_seed(1)
    for tensor in numbers(model).values():
        tensor.mul_(1 + 1e-3 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))
        tensor.add_(1e-6 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))


@torch.no_grad()
def silenced(model: nn.Module, smaller: nn.Module) -> nn.Module:
    """The original with every number at zero that the smaller network has not."""
    twin = copy.deepcopy(model)
    left = numbers(smaller)
    for name, tensor in numbers(twin).items():
        assert name in left, f"{name} is gone"
        used = torch.isin(tensor, left[name])
        assert int(used.sum()) == left[name].numel(), f"{name} has numbers that the original has not"
        if not name.endswith("running_var"):  # its scale is zero
            tensor.mul_(used)
    return twin


def by_lcprune(record: dict[str, Any], model: nn.Module, inputs: tuple[Tensor, ...], before: list[Tensor]) -> nn.Module:
    """One global ranking by magnitude; the proof in it is timed a second time, by itself."""
    del before
    start = time.process_time()
    graph = lcprune.trace(model, inputs)
    record["trace_s"] = round(time.process_time() - start, 2)
    result = lcprune.prune(graph, macs=TARGET, method="naive", min_keep=FLOOR, progress=False)
    cut = time.process_time()
    lcprune.verify(model, result.plan, inputs)
    record["verify_s"] = round(time.process_time() - cut, 2)
    record["cut_s"] = round(cut - start - record["verify_s"], 2)
    return result.model


def by_torch_pruning(
    record: dict[str, Any], model: nn.Module, inputs: tuple[Tensor, ...], before: list[Tensor]
) -> nn.Module:
    """One global ranking by magnitude; where that fails, the same share of every layer."""
    try:
        return in_steps(record, model, inputs, before, global_pruning=True)
    except Exception as error:
        record["global_error"] = f"{type(error).__name__}: {error}"[:200]
        return in_steps(record, model, inputs, before, global_pruning=False)


def in_steps(
    record: dict[str, Any], model: nn.Module, inputs: tuple[Tensor, ...], before: list[Tensor], global_pruning: bool
) -> nn.Module:
    """Small steps until the limit is met, as Torch-Pruning's guide does; counting MACs is no part of its time."""
    import torch_pruning

    classes = {x.shape[1] for x in before if x.ndim > 1}
    smaller = copy.deepcopy(model)
    whole = counted_macs(model, inputs)
    start, counting = time.process_time(), 0.0
    pruner = torch_pruning.pruner.BasePruner(
        smaller,
        inputs[0],
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        global_pruning=global_pruning,
        pruning_ratio=1.0,
        max_pruning_ratio=1 - FLOOR,
        iterative_steps=STEPS,
        ignored_layers=last_layers(smaller, classes),
    )
    record["trace_s"] = round(time.process_time() - start, 2)
    for record["steps"] in range(1, STEPS + 1):
        pruner.step()
        stepped = time.process_time()
        macs = counted_macs(smaller, inputs)
        counting += time.process_time() - stepped
        if macs <= TARGET * whole:
            break
    record["cut_s"] = round(time.process_time() - start - counting, 2)
    return smaller


def last_layers(model: nn.Module, widths: set[int]) -> list[nn.Module]:
    """Layers as wide as an output: what a user of that library would name by hand."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    return [m for m in layers if (m.out_features if isinstance(m, nn.Linear) else m.out_channels) in widths]


TOOLS = {"lcprune": by_lcprune, "Torch-Pruning": by_torch_pruning}
