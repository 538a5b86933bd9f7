"""Metrics that read weights only."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.registry import Context, metrics
from lcprune.scoring.units import Scores, members, owner_of, rows, sum_filters, sum_units, tensor_of, wide

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm)
_DISTANCES_AT_ONCE = 2**24


@metrics.register("l1")
def l1(graph: ChannelGraph) -> Scores:
    """Sum of absolute weights, ||F||_1 (Li et al. 2017)."""
    return sum_filters(graph, lambda filters: filters.abs().sum(1))


@metrics.register("l2")
def l2(graph: ChannelGraph) -> Scores:
    """Sum of squared weights, no root: the paper's "squared summation"; adds up over coupled filters."""
    return sum_filters(graph, lambda filters: filters.square().sum(1))


@metrics.register("l2_norm")
def l2_norm(graph: ChannelGraph) -> Scores:
    """Euclidean length of the weights, ||F||_2 with the root (He et al. 2018)."""
    return sum_filters(graph, lambda filters: filters.square().sum(1).sqrt())


@metrics.register("l2_next")
def l2_next(graph: ChannelGraph) -> Scores:
    """Sum of squares of the filter and of the next layers' weights that read it (Jiang et al. 2018)."""
    with torch.no_grad():
        slices = {
            (weight, dim): rows(wide(tensor_of(graph, weight)), dim).square().sum(1)
            for weight, dim in members(graph, "in")
        }
    return [own + read for own, read in zip(l2(graph), sum_units(graph, slices, "in"), strict=True)]


@metrics.register("geometric_median")
def geometric_median(graph: ChannelGraph) -> Scores:
    """Sum of distances to the layer's other filters: one amid them can be replaced (He et al. 2019)."""
    return sum_filters(graph, _distances)


def _distances(filters: torch.Tensor) -> torch.Tensor:
    total = filters.new_zeros(len(filters))
    step = max(1, _DISTANCES_AT_ONCE // len(filters))
    for start in range(0, len(filters), step):
        distance = torch.cdist(filters[start : start + step], filters)
        distance.diagonal(start).zero_()  # a filter's distance to itself is rounding
        total[start : start + step] = distance.sum(1)
    return total


@metrics.register("bn_scale")
def bn_scale(graph: ChannelGraph) -> Scores:
    """Absolute scale of the normalisation along the channel, |gamma| (Liu et al. 2017, network slimming)."""
    scales = {
        (weight, dim): wide(tensor_of(graph, weight)).abs()
        for weight, dim in members(graph, "along")
        if weight.split(".")[-1] == "weight" and isinstance(owner_of(graph, weight), _NORMS)
    }
    bare = [group.name for group in graph.groups if not any((m.weight, m.dim) in scales for m in group.members)]
    if bare:
        raise MetricError(
            f"metric 'bn_scale' cannot rank {', '.join(map(repr, bare))}: no normalisation with a scale "
            f"follows; use another metric, or leave the layer alone with trace(..., ignore={bare!r})"
        )
    return sum_units(graph, scales, "along")


@metrics.register("random")
def random(graph: ChannelGraph, context: Context) -> Scores:
    """Uniform in [0, 1), one draw per unit from the seed's own generator: what any other metric must beat."""
    generator = np.random.default_rng(context.seed)
    return [generator.random(group.size) for group in graph.groups]
