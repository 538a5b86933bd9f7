"""Folding batch norm into the convolution before it: the same function with half of the memory traffic.

The graph knows the pairs: a batch norm whose input is the very tensor that a convolution returned, which nothing
else reads. Folding is then checked on numbers by whoever folds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.utils import _pytree as pytree

from lcprune.batches import arithmetic, call
from lcprune.copies import copy_to_run

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def find_pairs(graph: ChannelGraph) -> list[tuple[str, str]]:
    """(convolution, batch norm) names that can be folded."""
    modules = dict(graph.model.named_modules())
    return [
        (layer, norm)
        for layer, norm in graph.norms.items()
        if _takes_numbers(modules[layer]) and _is_norm(modules[norm])
    ]


def checked_pairs(graph: ChannelGraph, inputs: Any) -> list[tuple[str, str]]:
    """Foldable pairs, or none if folding them changes what the network computes on a few of `inputs`."""
    few = pytree.tree_map(lambda leaf: leaf[:8], inputs)
    pairs = find_pairs(graph)
    if not pairs:
        return pairs
    original, folded = copy_to_run(graph.model), copy_to_run(graph.model)
    fold_(folded, pairs)
    with arithmetic(), torch.inference_mode():
        if agree(call(folded, few), call(original, few)):
            return pairs
    logger.warning("batch norm is not folded while candidates are judged: the folded network computes something else")
    return []


def agree(one: Any, other: Any, tolerance: float = 1e-3) -> bool:
    """Whether two outputs are equal to rounding, by the largest value in them."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        bool((a.double() - b.double()).abs().amax() <= tolerance * b.double().abs().amax() + 1e-12)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and a.numel()
    )


@torch.no_grad()
def fold_(model: nn.Module, pairs: Sequence[tuple[str, str]]) -> None:
    """Fold batch norms into convolutions, in place: for a copy in evaluation mode, of the graph's network or a cut."""
    modules: dict[str, Any] = dict(model.named_modules())
    for conv_name, norm_name in pairs:
        conv, norm = modules[conv_name], modules[norm_name]
        tensors = conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias
        # In float64: folding then costs no accuracy beyond one rounding of each weight.
        doubles: list[Any] = [None if tensor is None else tensor.double() for tensor in tensors]
        weight, bias, mean, variance, scale, offset = doubles
        weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, scale, offset)
        dtype = conv.weight.dtype
        conv.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        conv.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
        model.set_submodule(norm_name, _rest(norm))


def _takes_numbers(module: nn.Module) -> bool:
    """Whether a layer's weight and bias are its own: not computed from others before every run (weight norm, masks)."""
    return type(module) in _CONVOLUTIONS and {"weight", "bias"} <= module._parameters.keys()


def _is_norm(module: nn.Module) -> bool:
    if type(module) not in _NORMS and type(module).__name__ != "BatchNormAct2d":
        return False
    return getattr(module, "running_mean", None) is not None


def _rest(norm: nn.Module) -> nn.Module:
    # timm's BatchNormAct2d is a batch norm with dropout and activation behind it; these stay.
    if type(norm) in _NORMS:
        return nn.Identity()
    return nn.Sequential(
        *(getattr(norm, part) for part in ("drop", "act") if isinstance(getattr(norm, part, None), nn.Module))
    )
