"""Trace, halve, run, verify, train, save and load one network; called by coverage.py in a process of its own."""

from __future__ import annotations

import argparse
import copy
import json
import math
import resource
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coverage_foreign
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import lcprune
from lcprune.errors import first_line
from lcprune.select import Limits, Ranking
from lcprune.vision import import_timm, import_torchvision

SIZES = (64, 96, 128)
TARGET = 0.5
FLOOR = 0.1


Inputs = tuple[Any, ...]  # arguments of forward(): tensors, and for detectors a list of images


class DetectorCore(nn.Module):
    """Backbone and dense heads of a detector, for where torchvision's compiled operators do not load.

    Features that a second stage reads are outputs, so that they stay.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.rpn.head if hasattr(detector, "rpn") else detector.head
        self.two_stage = hasattr(detector, "rpn")

    def forward(self, x: Tensor) -> Any:
        features = list(self.backbone(x).values())
        heads = self.head(features)
        return (heads, features) if self.two_stage else heads


def build(name: str, kind: str, changes: Mapping[str, Any] | None = None) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with random weights, and the input shape (without batch) that it was made for."""
    source, _, model = name.partition(":")
    if source == "timm":
        timm = import_timm()
        network = timm.create_model(model, pretrained=False, **(changes or {}))
        shape = tuple(network.pretrained_cfg["input_size"])
        return network, shape
    if source != "torchvision":
        return coverage_foreign.build(source, model, kind)
    models = import_torchvision().models
    options = {"weights": None, **(changes or {})}
    if kind in ("segmentation", "detection"):
        options["weights_backbone"] = None
    if kind == "detection":
        size = 320 if "ssdlite" in model else 300 if "ssd" in model else 224
        # As many boxes whatever is cut, so that costs can be compared: all that there is room for.
        options |= {"box_score_thresh" if "rcnn" in model else "score_thresh": 0.0}
        if "rcnn" in model:
            options |= {"rpn_score_thresh": 0.0, "rpn_post_nms_top_n_test": 16, "box_detections_per_img": 8}
        if "ssd" not in model:
            options |= {"min_size": size, "max_size": size}
        network = models.get_model(model, **options)
        return network if whole_detectors() else DetectorCore(network), (3, size, size)
    network = models.get_model(model, **options)
    if kind == "flow":
        return network, (3, 128, 128)
    if kind == "video":
        return network, (3, 16, 224, 224) if model == "s3d" else (3, 8, 64, 64)
    return network, (3, 299, 299) if model == "inception_v3" else (3, 224, 224)


def whole_detectors() -> bool:
    """Whether torchvision's compiled operators load."""
    return bool(import_torchvision().extension._has_ops())


def batch(inputs: Inputs, count: int) -> Inputs:
    """More samples like these."""
    generator = torch.Generator().manual_seed(1)

    def more(x: Any) -> Any:
        images = isinstance(x, list)
        others = [torch.randn((x[0] if images else x).shape, generator=generator) for _ in range(count - 1)]
        return x + others if images else torch.cat([x, *others])

    return tuple(map(more, inputs))


@torch.no_grad()
def enliven(model: nn.Module, inputs: Inputs) -> None:
    """Undo what would hide a wrong cut (zero-initialised scales, trivial statistics), then calibrate."""
    for name, parameter in model.named_parameters():
        if parameter.numel() and parameter.abs().max() < 1e-3:
            parameter.copy_(0.2 + 0.3 * torch.rand_like(parameter) if parameter.ndim < 2 else parameter)
            if parameter.ndim >= 2:
                parameter.normal_(0, 1 / math.sqrt(parameter[0].numel()))
        elif parameter.ndim == 1 and not name.endswith("bias"):
            parameter.mul_(0.5 + torch.rand_like(parameter))
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # a plain average: one batch sets the statistics
        norm.reset_running_stats()
        norm.train()
    model(*batch(inputs, 3))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        if norm.running_var is not None:
            norm.running_var.clamp_(min=1e-2)
    model.eval()


def smallest_input(model: nn.Module, shape: tuple[int, ...], kind: str) -> Inputs:
    """The first size, one sample, that the network accepts and trains at; if it trains at none, that it accepts."""
    generator = torch.Generator().manual_seed(0)
    sizes = [size for size in SIZES if size < shape[-1]] if kind not in ("video", "detection", "flow") else []
    accepted: list[Inputs] = []
    for candidate in [*((shape[0], size, size) for size in sizes), shape]:
        inputs: Inputs = tuple(torch.randn((1, *candidate), generator=generator) for _ in range(1 + (kind == "flow")))
        if type(model).__module__.startswith("torchvision.models.detection"):
            inputs = ([inputs[0][0]],)
        try:
            with torch.no_grad():
                outputs = tree_leaves(model(*inputs))
                if all(torch.isfinite(output).all() for output in outputs):
                    accepted.append(inputs)
                    if sizes:  # a head that only training has may need more room
                        copy.deepcopy(model).train()(*batch(inputs, 2))
                    return inputs
        except (RuntimeError, AssertionError, ValueError, IndexError):
            continue
    if accepted:
        return accepted[0]
    raise RuntimeError(f"the network accepts none of {sizes} and {shape}")


class LayerCounter(TorchDispatchMode):
    """Multiply-adds of convolution, linear and recurrent layers, by torch's formulas.

    Attention multiplies two activations and is no layer; the cost leaves it out too.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.macs = 0
        self.weights = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "mkldnn_rnn_layer":
            self.macs += args[0].shape[:2].numel() * (args[1].numel() + args[2].numel())
        elif "convolution" in name or any(map(self.is_weight, args[-2:] if name in ("mm", "addmm", "bmm") else ())):
            self.macs += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=output) // 2
        return output

    def is_weight(self, x: Tensor) -> bool:
        """Whether a factor is a weight of the model; in a batch of products (bmm) the same one for all."""
        return x.untyped_storage().data_ptr() in self.weights and (x.ndim == 2 or x.stride(0) == 0)


def counted_macs(model: nn.Module, inputs: Inputs) -> int:
    """What torch computes in layers."""
    with torch.no_grad(), LayerCounter(model) as counter:
        model(*inputs)
    return counter.macs


def frozen_share(model: nn.Module, inputs: Inputs, graph: Any) -> float:
    """Share of the output channels of the convolution and linear layers that ran which no group can cut."""
    widths: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, *_: Any) -> None:
            widths[f"{name}.weight"] = getattr(module, "out_channels", None) or module.out_features

        return hook

    layers = (nn.modules.conv._ConvNd, nn.Linear)
    hooks = [m.register_forward_hook(note(n)) for n, m in model.named_modules() if isinstance(m, layers)]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    tensors = dict(model.named_parameters(remove_duplicate=False))
    # Grouped transposed convolutions share positions between their groups, hence the ratio.
    cut = sum(
        member.index.size * widths[member.weight] // tensors[member.weight].shape[member.dim]
        for group in graph.groups
        for member in group.members
        if member.role == "out" and member.weight in widths
    )
    return 1 - cut / max(1, sum(widths.values()))


def train_step(model: nn.Module, inputs: Inputs) -> None:
    """One step of gradient descent on two samples; detectors and their losses get boxes, masks and keypoints."""
    model.train()
    inputs = batch(inputs, 2)
    if isinstance(inputs[0], list):
        height, width = inputs[0][0].shape[1:]
        target = {
            "boxes": torch.tensor([[10.0, 10.0, 0.5 * width, 0.6 * height], [30.0, 40.0, 0.9 * width, 0.8 * height]]),
            "labels": torch.tensor([1, 1]),
            "masks": torch.ones(2, height, width, dtype=torch.uint8),
            "keypoints": torch.tensor([40.0, 50.0, 1.0]).expand(2, 17, 3),
        }
        losses = list(model(*inputs, [dict(target), dict(target)]).values())
    else:
        losses = [output.square().mean() for output in tree_leaves(model(*inputs)) if output.is_floating_point()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    torch.stack(losses).sum().backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), f"{name} is not finite after a step"


def save_and_load(model: nn.Module, plan: Any, fresh: nn.Module) -> None:
    """Write the network to a folder and read it back into a freshly built one."""
    with tempfile.TemporaryDirectory() as folder:
        lcprune.save(folder, model, plan)
        loaded = lcprune.load(folder, fresh)
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert list(ours) == list(theirs), "other tensors were loaded than saved"
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), f"{name} was loaded with other numbers than saved"


def measure(name: str, kind: str, export_times: bool, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything there is to say of one network, built with `changes`; `stage` is where it stopped if it did."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # the fast path hides its linear layers from the counter
    record: dict[str, Any] = {"model": name, "kind": kind, "ok": False, "stage": "build"}
    try:
        _measure(record, name, kind, export_times, changes)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        record["error"] = f"{type(error).__name__}: {lines[0][:300]}"
        traceback.print_exc()
    record["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return record


def _measure(
    record: dict[str, Any], name: str, kind: str, export_times: bool, changes: Mapping[str, Any] | None
) -> None:
    model, shape = build(name, kind, changes)
    model.eval()
    inputs = smallest_input(model, shape, kind)
    images = isinstance(inputs[0], list)
    record["input"] = [1, *inputs[0][0].shape] if images else list(inputs[0].shape)
    if kind == "detection":
        record["whole"] = not isinstance(model, DetectorCore)
    enliven(model, inputs)
    with torch.no_grad():
        before = [output.shape for output in tree_leaves(model(*inputs))]
    record["built_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    warm = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    small = torch.randn(1, 3, 8, 8)
    lcprune.trace(warm, small)  # imports that the first one of a process pays for
    if export_times and not images:
        torch.export.export(warm, (small,), strict=False)
        twin = copy.deepcopy(model)  # some keep tensors of their last run, which would be the export's
        start = time.process_time()
        try:
            with torch.no_grad():
                torch.export.export(twin, inputs, strict=False)
            record["export_s"] = round(time.process_time() - start, 2)
        except Exception as error:  # what torch cannot export has no such time
            record["export_error"] = first_line(error)

    record["stage"] = "trace"
    start = time.process_time()
    graph = lcprune.trace(model, inputs)
    record["trace_s"] = round(time.process_time() - start, 2)
    record["traced_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    record.update(
        groups=len(graph.groups),
        units=sum(group.size for group in graph.groups),
        mixing=len(graph.mixing),
        frozen_share=round(frozen_share(model, inputs, graph), 4),
        macs=int(graph.macs),
        params=int(graph.params),
        reasons=dict(list(graph.frozen.items())[:40]),
    )
    record["stage"] = "cost"
    record["macs_match"] = graph.macs == counted_macs(model, inputs)
    record["params_match"] = graph.params == sum(parameter.numel() for parameter in model.parameters())

    record["stage"] = "select"
    rng = np.random.default_rng(0)
    ranking = Ranking([rng.random(group.size) for group in graph.groups], graph.cost, min_keep=FLOOR)
    try:
        kept, record["reached"] = ranking.select(Limits(macs=TARGET)), True
    except lcprune.BudgetError:
        kept, record["reached"] = ranking.kept(ranking.floors), False
    record["stage"] = "plan"
    start = time.process_time()
    plan = graph.plan(kept)
    record["stage"] = "apply"
    smaller = plan.apply(model)
    record["surgery_s"] = round(time.process_time() - start, 2)
    record["macs_after"] = round(plan.macs / graph.macs, 6)
    record["params_after"] = round(plan.params / graph.params, 6)

    record["stage"] = "run"
    with torch.no_grad():
        after = [output.shape for output in tree_leaves(smaller(*inputs))]
    assert images or before == after, f"output shapes were {before}, are {after}"  # other boxes may be found
    record["macs_after_match"] = plan.macs == counted_macs(smaller, inputs)
    record["params_after_match"] = plan.params == sum(parameter.numel() for parameter in smaller.parameters())
    record["stage"] = "verify"
    start = time.process_time()
    verification = lcprune.verify(model, plan, inputs)
    record["verify_s"] = round(time.process_time() - start, 2)
    record["max_error"] = float(verification.max_error)
    record["verified"] = bool(verification.ok)
    assert verification.ok, f"verify: {verification}"
    counts = ("macs_match", "params_match", "macs_after_match", "params_after_match")
    record["stage"] = "cost"
    wrong = [key for key in counts if not record[key]]
    assert not wrong, f"counted cost differs: {wrong}"
    record["stage"] = "save"
    save_and_load(smaller, plan, build(name, kind, changes)[0])
    record["stage"] = "train"
    train_step(smaller, inputs)
    record["stage"], record["ok"] = "done", True


def main() -> None:
    """Measure one network and write its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kind", default="cnn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--export-times", action="store_true")
    parser.add_argument("--memory-gb", type=float, default=12)
    options = parser.parse_args()
    limit = int(options.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    options.out.write_text(json.dumps(measure(options.model, options.kind, options.export_times)))


if __name__ == "__main__":
    main()
