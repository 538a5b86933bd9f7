"""Metrics that watch feature maps while data runs forwards."""

from __future__ import annotations

import torch
from torch import nn

from lcprune.evaluate.prepare import call
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.context import Context
from lcprune.scoring.features import feature_maps, per_position, spread
from lcprune.scoring.passes import batches, evaluating
from lcprune.scoring.registry import register
from lcprune.scoring.units import FloatArray, Key, sum_units, wide


@register("max_activation_variance", needs_data=True)
def max_activation_variance(graph: ChannelGraph, context: Context) -> list[FloatArray]:
    """Variance over images of a feature map's maximum: what never changes tells nothing (Yoon 2018)."""
    moments: dict[Key, _Moments] = {}

    def maxima(layer: nn.Module, output: torch.Tensor) -> torch.Tensor:
        return wide(spread(layer, output, len(output)).amax(2))

    with evaluating(graph.model), torch.no_grad(), feature_maps(graph, maxima) as maps:
        for inputs, _, samples in batches(graph, context, "max_activation_variance"):
            call(graph.model, inputs)
            highest: dict[Key, torch.Tensor] = {}
            layers = {found.key: found.layer for found in maps}
            for found in maps:  # a layer that runs twice has one feature map in two parts
                value, before = spread(found.layer, found.value, samples).amax(2), highest.get(found.key)
                highest[found.key] = value if before is None else torch.maximum(before, value)
            for key, value in highest.items():
                moments.setdefault(key, _Moments(layers[key])).add(value)
            maps.clear()
    return sum_units(graph, {key: each.variance() for key, each in moments.items()})


class _Moments:
    """Mean and variance that batches are merged into (Chan et al. 1979): any order, no cancellation."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, values: torch.Tensor) -> None:
        """Take in (samples, channels)."""
        mean, squares = values.mean(0), (values - values.mean(0)).square().sum(0)
        if self.count:
            total = self.count + len(values)
            shift = mean - self.mean
            squares = self.squares + squares + shift.square() * (self.count * len(values) / total)
            mean = self.mean + shift * (len(values) / total)
        self.count, self.mean, self.squares = self.count + len(values), mean, squares

    def variance(self) -> torch.Tensor:
        """Of the whole population, per position of the weight."""
        return per_position(self.layer, self.squares / self.count)
