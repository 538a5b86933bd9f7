"""Metrics that ask the loss: first-order Taylor expansions and Fisher information."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.features import feature_maps, per_position, spread
from lcprune.scoring.passes import batches, evaluating, total_loss
from lcprune.scoring.registry import Context, metrics
from lcprune.scoring.units import FloatArray, Key, members, rows, sum_units, tensor_of, wide


@metrics.register("taylor", needs_data=True)
def taylor(graph: ChannelGraph, context: Context) -> list[FloatArray]:
    """|mean over the filter of gradient times weight|, the gradient averaged over images."""
    keys = list(members(graph))
    weights = [tensor_of(graph, weight) for weight, _ in keys]
    sums = [torch.zeros_like(wide(weight)) for weight in weights]
    seen = 0
    with evaluating(graph.model), _differentiable(weights), torch.enable_grad():
        for inputs, target, samples in batches(graph, context, "taylor"):
            loss = total_loss(graph, context, inputs, target, samples)
            for total, gradient in zip(sums, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                if gradient is not None:
                    total += gradient
            seen += samples
    return sum_units(
        graph,
        {
            key: rows(total / seen * wide(weight), key[1]).mean(1).abs()
            for key, weight, total in zip(keys, weights, sums, strict=True)
        },
    )


@metrics.register("taylor_activation", needs_data=True)
def taylor_activation(graph: ChannelGraph, context: Context) -> list[FloatArray]:
    """|mean over the feature map of gradient times activation|, averaged over images (Molchanov et al. 2017).

    Without that paper's rescaling of layers, which beta does better; `l2_normalised(scores)` adds it.
    """
    return _over_images(graph, context, "taylor_activation", lambda total, size: (total / size).abs())


@metrics.register("fisher", needs_data=True)
def fisher(graph: ChannelGraph, context: Context) -> list[FloatArray]:
    """Half the mean over images of (sum over the map of gradient times activation)^2 (Theis et al. 2018)."""
    return _over_images(graph, context, "fisher", lambda total, size: total.square() / 2)


def _over_images(
    graph: ChannelGraph, context: Context, title: str, per_image: Callable[[torch.Tensor, int], torch.Tensor]
) -> list[FloatArray]:
    """Average over images of a function of each feature map's sum of `a * dL/da`.

    Args:
        per_image: ((images, channels) sums, elements of a feature map) -> (images, channels).
    """
    sums: dict[Key, torch.Tensor] = {}
    seen = 0
    with evaluating(graph.model), torch.enable_grad(), feature_maps(graph) as maps:
        for inputs, target, samples in batches(graph, context, title):
            loss = total_loss(graph, context, inputs, target, samples)
            gradients = torch.autograd.grad(loss, [found.value for found in maps], allow_unused=True)
            products: dict[Key, torch.Tensor] = {}
            sizes: dict[Key, int] = {}
            for found, gradient in zip(maps, gradients, strict=True):
                activation = spread(found.layer, found.value.detach(), samples)
                sizes[found.key] = sizes.get(found.key, 0) + activation.shape[2]
                if gradient is not None:  # a layer that runs twice has one feature map in two parts
                    product = (activation * spread(found.layer, gradient, samples)).sum(2)
                    products[found.key] = products.get(found.key, 0.0) + wide(product)
            layers = {found.key: found.layer for found in maps}
            for key, product in products.items():
                value = per_position(layers[key], per_image(product, sizes[key]).sum(0))
                sums[key] = sums.get(key, 0.0) + value
            maps.clear()
            seen += samples
    return sum_units(graph, {key: total / seen for key, total in sums.items()})


@contextmanager
def _differentiable(weights: list[torch.Tensor]) -> Iterator[None]:
    """Frozen weights have a gradient here, and none afterwards."""
    before = [weight.requires_grad for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight, flag in zip(weights, before, strict=True):
            weight.requires_grad_(flag)
