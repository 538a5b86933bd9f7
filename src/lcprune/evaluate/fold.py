"""Folding batch norm into the convolution before it: the same function with half of the memory traffic.

Pairs are found by watching one forward pass: a batch norm whose input is the very tensor that a convolution
returned, which nothing else reads. Folding is then checked on numbers by whoever folds.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from lcprune.evaluate.evaluator import arithmetic
from lcprune.evaluate.prepare import call

logger = logging.getLogger("lcprune")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Uses(TorchFunctionMode):
    """Counts how often each tensor is read by a function; asking for its shape does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[int] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _only_looks(func):
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor):
                    self.count[id(leaf)] += 1
        return func(*args, **kwargs)


def find_pairs(model: nn.Module, inputs: Any) -> list[tuple[str, str]]:
    """(convolution, batch norm) names that can be folded.

    Args:
        model: run once, in evaluation mode, without gradients; its mode is put back.
        inputs: what to call it with: a tensor, a tuple of them, or a dict.
    """
    made: dict[int, str] = {}
    read: dict[str, list[int]] = defaultdict(list)
    alive: list[Any] = []  # while a tensor lives, no other one gets its id
    calls: Counter[str] = Counter()
    uses = _Uses()
    handles = []

    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            calls[name] += 1
            alive.extend((inputs, output))
            if type(module) in _CONVOLUTIONS:
                made[id(output)] = name
                uses.count[id(output)] = 0  # a tensor that died may have had this id
            else:
                read[name].append(id(inputs[0]))

        return module.register_forward_hook(hook)

    modes = {module: module.training for module in model.modules()}
    for name, module in model.named_modules():
        if type(module) in _CONVOLUTIONS or _is_norm(module):
            handles.append(watch(name, module))
    try:
        model.eval()
        with torch.no_grad(), uses:
            call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    pairs = []
    for norm, sources in read.items():
        producer = made.get(sources[0])
        if producer and calls[norm] == calls[producer] == 1 and uses.count[sources[0]] == 1:
            pairs.append((producer, norm))
    return pairs


def checked_pairs(model: nn.Module, inputs: Any) -> list[tuple[str, str]]:
    """Foldable pairs, or none if folding them changes what the network computes on a few of `inputs`."""
    few = pytree.tree_map(lambda leaf: leaf[:8], inputs)
    pairs = find_pairs(model, few)
    if not pairs:
        return pairs
    original, folded = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
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
    """Fold batch norms into convolutions, in place: for a copy in evaluation mode.

    Args:
        model: the copy.
        pairs: from `find_pairs` of this network or of one that it was cut from.
    """
    modules = dict(model.named_modules())
    for conv_name, norm_name in pairs:
        conv: Any = modules[conv_name]
        norm: Any = modules[norm_name]
        bias = None if conv.bias is None else conv.bias.double()
        # In float64: folding then costs no accuracy beyond one rounding of each weight.
        weight, bias = fuse_conv_bn_weights(
            conv.weight.double(),
            bias,
            norm.running_mean.double(),
            norm.running_var.double(),
            norm.eps,
            None if norm.weight is None else norm.weight.double(),
            None if norm.bias is None else norm.bias.double(),
        )
        dtype = conv.weight.dtype
        conv.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        conv.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
        model.set_submodule(norm_name, _rest(norm))


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


def _only_looks(func: Callable[..., Any]) -> bool:
    name = resolve_name(func) or getattr(func, "__name__", "")
    return name.endswith(("__get__", ".size", ".dim", ".stride", ".is_contiguous", ".numel", ".__len__"))
