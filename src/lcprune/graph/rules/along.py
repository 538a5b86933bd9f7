"""Operators that run along some dimensions, usually of space: pooling, interpolation, sorting, Fourier transforms.

Along the other dimensions every channel is treated by itself. Channels that lie along the dimension itself stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.table import Call, Outcome, freeze, passing, plain_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule(
    *("cummax", "cummin", "cumprod", "cumsum", "_fft_c2c", "_fft_c2r", "_fft_r2c", "kthvalue", "logcumsumexp"),
    *("sort", "topk"),
    uneven=True,
    fixed=plain_arguments,
)
def along(run: LabelPass, call: Call, out: Any) -> Outcome:
    """What comes out, and where it was found, belongs to the channel that it came from."""
    first = out if isinstance(out, Tensor) else out[0]
    dims = call.dims(2 if call.short in ("kthvalue", "topk") else 1, -1)
    layers = passing(run, call.labels[0], dims, f"{call.short} runs along its channels")
    if first.ndim < call.input.ndim:  # kthvalue drops the dimension
        layers = [layer.squeeze(*dims) for layer in layers]
    return Labels(tuple(layers), weight=call.labels[0].weight)


@rule(
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("avg_pool2d", "avg_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "grid_sampler_2d", "grid_sampler_3d"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "upsample_bilinear2d", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa"),
    fixed=plain_arguments,
)
def spatial(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Channels pass through; a grid of channels and space is tied along space."""
    count = next(int(letter) for letter in call.short if letter.isdigit())
    dims = set(range(call.input.ndim - count, call.input.ndim))
    layers = []
    for layer in call.labels[0].layers:
        here = varying(layer) & dims
        if here and varying(layer) <= dims:
            run.freeze(layer, f"{call.short} runs along its channels")
        else:
            layers.append(run.tie(layer, sorted(here)))
    freeze(run, call.labels[1:], f"steers {call.short}")
    return call.labels[0].moved(layers)


@rule("torchvision::roi_align", "torchvision::roi_pool", fixed=plain_arguments)
def pooled_boxes(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Boxes are cut out of the images and pooled: a batch of boxes in place of the batch of images."""
    layers = passing(run, call.labels[0], (0, 2, 3), "is cut into boxes")
    freeze(run, call.labels[1:2], "says where boxes are")
    return [Labels(tuple(layers))]
