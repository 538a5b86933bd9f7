"""Metrics that ask the loss: first-order Taylor expansions and Fisher information.

A filter's feature map is its layer's output, or that of the batch norm which takes this output directly:
there, zero is what the next layer reads of a filter that is gone; before the norm, zero would still leave the
norm's shift. A ReLU further on does not change `a * dL/da`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.passes import batches, evaluating, total_loss
from lcprune.scoring.registry import Context, metrics
from lcprune.scoring.units import Key, Scores, members, owner_of, rows, sum_units, tensor_of, wide

_CONV = nn.modules.conv._ConvNd
_TRANSPOSED = nn.modules.conv._ConvTransposeNd


class _FeatureMap(NamedTuple):
    """What one call of a layer gave, and the weight that made it with the dimension along which its filters lie."""

    key: Key
    layer: nn.Module
    value: torch.Tensor


@metrics.register("taylor", needs_data=True)
def taylor(graph: ChannelGraph, context: Context) -> Scores:
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
def taylor_activation(graph: ChannelGraph, context: Context) -> Scores:
    """|mean over the feature map of gradient times activation|, averaged over images (Molchanov et al. 2017).

    Without that paper's rescaling of layers, which beta does better; `l2_normalised(scores)` adds it.
    """
    return _over_images(graph, context, "taylor_activation", lambda total, size: (total / size).abs())


@metrics.register("fisher", needs_data=True)
def fisher(graph: ChannelGraph, context: Context) -> Scores:
    """Half the mean over images of (sum over the map of gradient times activation)^2 (Theis et al. 2018)."""
    return _over_images(graph, context, "fisher", lambda total, size: total.square() / 2)


def _over_images(
    graph: ChannelGraph, context: Context, title: str, per_image: Callable[[torch.Tensor, int], torch.Tensor]
) -> Scores:
    """Average over images of a function of each feature map's sum of `a * dL/da`.

    Args:
        per_image: ((images, channels) sums, elements of a feature map) -> (images, channels).
    """
    sums: dict[Key, torch.Tensor] = {}
    seen = 0
    with evaluating(graph.model), torch.enable_grad(), _feature_maps(graph) as maps:
        for inputs, target, samples in batches(graph, context, title):
            loss = total_loss(graph, context, inputs, target, samples)
            gradients = torch.autograd.grad(loss, [found.value for found in maps], allow_unused=True)
            products: dict[Key, torch.Tensor] = {}
            sizes: dict[Key, int] = {}
            for found, gradient in zip(maps, gradients, strict=True):
                activation = _spread(found.layer, found.value.detach(), samples)
                sizes[found.key] = sizes.get(found.key, 0) + activation.shape[2]
                if gradient is not None:  # a layer that runs twice has one feature map in two parts
                    product = (activation * _spread(found.layer, gradient, samples)).sum(2)
                    products[found.key] = products.get(found.key, 0.0) + wide(product)
            layers = {found.key: found.layer for found in maps}
            for key, product in products.items():
                value = _per_position(layers[key], per_image(product, sizes[key]).sum(0))
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


@contextmanager
def _feature_maps(graph: ChannelGraph) -> Iterator[list[_FeatureMap]]:
    """A list that fills with every filter's feature maps while the network runs; empty it between batches.

    Raises:
        MetricError: filters belong to something else than a convolution or a linear layer.
    """
    seen: list[_FeatureMap] = []

    def listen(layer: nn.Module, key: Key, source: nn.Module) -> RemovableHandle:
        def after(_: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_()  # a frozen network still has sensitivities
            seen.append(_FeatureMap(key, layer, output))
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


def _spread(layer: nn.Module, output: torch.Tensor, samples: int) -> torch.Tensor:
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


def _per_position(layer: nn.Module, channels: torch.Tensor) -> torch.Tensor:
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
