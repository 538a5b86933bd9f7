"""Operators over space: pooling, interpolation, padding by reflection. Channels pass through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lcprune.graph.labels import Labels, varying
from lcprune.graph.rules.table import Call, Outcome, plain_arguments, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass

_SPATIAL = {
    1: "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d max_pool1d max_pool1d_with_indices reflection_pad1d "
    "replication_pad1d upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d",
    2: "_adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d fractional_max_pool2d max_pool2d "
    "max_pool2d_with_indices reflection_pad2d replication_pad2d upsample_bicubic2d "
    "upsample_bilinear2d upsample_nearest2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
    "_upsample_nearest_exact2d grid_sampler_2d mkldnn_max_pool2d",
    3: "_adaptive_avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool3d max_pool3d "
    "max_pool3d_with_indices reflection_pad3d replication_pad3d upsample_nearest3d upsample_trilinear3d "
    "_upsample_nearest_exact3d grid_sampler_3d",
}


def _register(count: int) -> None:
    @rule(*_SPATIAL[count].split(), fixed=plain_arguments)
    def spatial(run: LabelPass, call: Call, out: Any) -> Outcome:
        dims = range(call.input.ndim - count, call.input.ndim)
        layers = []
        for layer in call.labels[0].layers:
            here = [dim for dim in dims if layer.shape[dim] > 1]
            if here and varying(layer) <= set(dims):
                run.freeze(layer, f"{call.name.removeprefix('aten::')} runs along its channels")
                continue
            layers.append(run.tie(layer, here))
        for label in call.labels[1:]:
            for layer in label.layers:
                run.freeze(layer, f"steers {call.name.removeprefix('aten::')}")
        return call.labels[0].moved(layers)


@rule("torchvision::roi_align", "torchvision::roi_pool", fixed=plain_arguments)
def pooled_boxes(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Boxes are cut out of the images and pooled: a batch of boxes in place of the batch of images."""
    layers = [layer for layer in call.labels[0].layers if varying(layer) <= {1}]
    for layer in call.labels[0].layers:
        if not varying(layer) <= {1}:
            run.freeze(layer, "is cut into boxes")
    for layer in call.labels[1].layers:
        run.freeze(layer, "says where boxes are")
    return [Labels(tuple(layers))]


for _count in _SPATIAL:
    _register(_count)
