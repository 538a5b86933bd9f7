"""The feature map of every filter, caught with hooks.

A filter's feature map is its layer's output, or that of the batch norm which takes this output directly:
there, zero is what the next layer reads of a filter that is gone; before the norm, zero would still leave the
norm's shift. A ReLU further on does not change `a * dL/da`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.units import Key, members, owner_of, tensor_of

_CONV = nn.modules.conv._ConvNd
_TRANSPOSED = nn.modules.conv._ConvTransposeNd


@dataclass
class FeatureMap:
    """What one call of one layer gave.

    Attributes:
        key: the weight that made it, and the dimension along which its filters lie.
        layer: the layer.
        value: the feature map.
    """

    key: Key
    layer: nn.Module
    value: torch.Tensor


@contextmanager
def feature_maps(graph: ChannelGraph) -> Iterator[list[FeatureMap]]:
    """A list that fills with every filter's feature maps while the network runs; empty it between batches.

    Raises:
        MetricError: filters belong to something else than a convolution or a linear layer.
    """
    seen: list[FeatureMap] = []

    def listen(layer: nn.Module, key: Key, source: nn.Module) -> RemovableHandle:
        def after(_: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_()  # a frozen network still has sensitivities
            seen.append(FeatureMap(key, layer, output))
            return output.clone()  # what follows may work in place: `out += identity`

        return source.register_forward_hook(after)

    names = {module: name for name, module in graph.model.named_modules()}
    handles = []
    for layer, key in _layers(graph).items():
        norm = graph.norms.get(names[layer])
        handles.append(listen(layer, key, layer if norm is None else graph.model.get_submodule(norm)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def spread(layer: nn.Module, output: torch.Tensor, samples: int) -> torch.Tensor:
    """A layer's output as (samples, channels, positions).

    A leading dimension that is a multiple of the batch (windows, frames) counts as positions.
    """
    channels_last = output.movedim(1, -1) if isinstance(layer, _CONV) else output
    if output.shape[0] % samples:
        raise MetricError(
            f"{type(layer).__name__} gave shape {tuple(output.shape)} for {samples} samples, so what belongs "
            "to which sample is unknown; use a metric that reads weights only"
        )
    return channels_last.reshape(samples, -1, channels_last.shape[-1]).transpose(1, 2)


def per_position(layer: nn.Module, channels: torch.Tensor) -> torch.Tensor:
    """Numbers per output channel -> numbers per position along the weight's filter dimension."""
    if isinstance(layer, _TRANSPOSED):  # its weight is (in, out / groups): groups share a position
        return channels.reshape(layer.groups, -1).sum(0)
    return channels


def _layers(graph: ChannelGraph) -> dict[nn.Module, Key]:
    found: dict[nn.Module, Key] = {}
    for key, groups in members(graph).items():
        weight = tensor_of(graph, key[0])
        # Tied weights have several owners, and each of them makes feature maps.
        owners = [m for m in graph.model.modules() if any(p is weight for p in m.parameters(recurse=False))]
        if not owners or not all(isinstance(owner, (_CONV, nn.Linear)) for owner in owners):
            kind = type(owner_of(graph, key[0])).__name__
            raise MetricError(
                f"the filters of {groups[0]!r} are in {key[0]!r} of a {kind}, whose feature maps cannot be "
                f"caught; use a metric that reads weights only, or trace(..., ignore=[{groups[0]!r}])"
            )
        found.update(dict.fromkeys(owners, key))
    return found
