"""Batch, group, layer and instance normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.elementwise import combine
from lcprune.graph.rules.table import Call, Outcome, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


def _ride(run: LabelPass, call: Call, x: Labels, riders: list[Tensor | None], shape: list[int]) -> Labels:
    """Per-channel tensors, reshaped to `shape` (with -1 for the channels), meet the labels of the input."""
    shapes: list[Sequence[int]] = [call.input.shape]
    labels = [x]
    for rider in riders:
        if isinstance(rider, Tensor):
            own = call.labels_of(rider)
            shapes.append([rider.numel() if length == -1 else length for length in shape])
            labels.append(own.moved([layer.reshape(shape) for layer in own.layers]))
    merged = combine(run, shapes, labels, call.input.ndim)
    return Labels(merged.layers, weight=merged.weight)


@rule(
    *(
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "cudnn_batch_norm",
    ),
    *("_batch_norm_no_update", "_batch_norm_with_update", "batch_norm", "miopen_batch_norm"),
    mixes=True,
    fixed=lambda call: call.args[5:8],  # training, momentum, eps
)
def batch_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Scale, shift and statistics ride on dimension 1; in training mode the other dimensions are mixed."""
    shape = [1, -1] + [1] * (call.input.ndim - 2)
    uses_statistics = isinstance(call.arg(3, "running_mean"), Tensor) and call.arg(5, "training") is not True
    if not uses_statistics:
        for layer in call.labels[0].layers:
            dims = sorted(varying(layer) - {1})
            if dims:
                run.mix(layer, dims)
    riders = [value for value in call.args[1:5] if isinstance(value, Tensor)]
    merged = _ride(run, call, call.labels[0], list(riders), shape)
    return merged if isinstance(out, Tensor) else [merged]


@rule("native_group_norm", "group_norm", mixes=True, fixed=lambda call: call.args[7:])
def group_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Equal cuts in every group; with one channel per group the number of groups is cut instead."""
    groups = call.arg(6, "group")
    channels = call.input.shape[1]
    merged = _ride(
        run,
        call,
        call.labels[0],
        [call.arg(1, "weight"), call.arg(2, "bias")],
        [1, -1] + [1] * (call.input.ndim - 2),
    )
    layers = []
    for layer in merged.layers:
        if layer.shape[1] > 1:
            layer = run.tie(layer, sorted(varying(layer) - {1}))
            if groups == channels:
                run.use_groups(layer)
            else:
                grid = layer.reshape(groups, channels // groups)
                run.tie(grid, [0] if groups > 1 else [])
                run.mix(grid, [1])
        layers.append(layer)
    result = Labels(tuple(layers), weight=merged.weight)
    return result if isinstance(out, Tensor) else [result]


@rule(
    *("native_layer_norm", "layer_norm", "rms_norm", "_fused_rms_norm"),
    mixes=True,
    fixed=lambda call: [value for value in call.args[2:] if not isinstance(value, Tensor)],
)
def layer_norm(run: LabelPass, call: Call, out: Any) -> Outcome:
    """The last dimensions share mean and variance; scale and shift ride on them."""
    count = len(call.args[1])
    x = call.labels[0]
    dims = set(range(call.input.ndim - count, call.input.ndim))
    for layer in x.layers:
        here = sorted(varying(layer) & dims)
        if here:
            run.mix(layer, here)
    riders = [rider for rider in call.args[2:4] if isinstance(rider, Tensor)]
    shapes = [call.input.shape, *(rider.shape for rider in riders)]
    merged = combine(run, shapes, [x, *(call.labels_of(rider) for rider in riders)], call.input.ndim)
    result = Labels(merged.layers, weight=merged.weight)
    return result if isinstance(out, Tensor) else [result]
