"""Random selections, and the attributes that a pruned network must have."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from zoo import ZOO

import lcprune

KINDS = ("random", "one unit each", "half", "everything")


@functools.cache
def traced(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    """A zoo network, its inputs and its graph; traced once per process and never changed."""
    entry = ZOO[name]
    model, inputs = entry.factory(), entry.inputs()
    return model, inputs, lcprune.trace(model, inputs)


def select(graph: Any, kind: str, only: set[str] | None = None) -> dict[str, list[int]]:
    """Kept units per group.

    Args:
        graph: a channel graph.
        kind: one of `KINDS`.
        only: groups that may be cut; the others stay whole.
    """
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    kept = {}
    for group in graph.groups:
        count = {
            "one unit each": 1,
            "half": max(1, group.size // 2),
            "everything": group.size,
        }.get(kind, int(rng.integers(1, group.size + 1)))
        if only is not None and group.name not in only:
            count = group.size
        kept[group.name] = sorted(int(unit) for unit in rng.choice(group.size, count, replace=False))
    return kept


@functools.cache
def pruned(name: str, kind: str) -> tuple[dict[str, list[int]], Any, nn.Module]:
    """Selection, plan and pruned network of a zoo entry."""
    model, _, graph = traced(name)
    kept = select(graph, kind)
    plan = graph.plan(kept)
    return kept, plan, plan.apply(model)


def layers_cut(graph: Any) -> dict[str, str]:
    """Weight name -> group that cuts its outputs."""
    return {member.weight: group.name for group in graph.groups for member in group.members if member.role == "out"}


def group_of(graph: Any, layer: str) -> Any | None:
    """The first group that cuts a layer, named by module or by bare parameter."""
    for group in graph.groups:
        for member in group.members:
            if member.role == "out" and (member.weight == layer or member.weight.startswith(layer + ".")):
                return group
    return None


def wrong_attributes(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[str]:
    """What modules say of themselves that their tensors, or the tensors that they are given, contradict."""
    wrong: list[str] = []

    def expect(module_name: str, what: str, said: Any, true: Any) -> None:
        if said != true:
            wrong.append(f"{module_name}.{what} is {said}, should be {true}")

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            swap = module.transposed
            out, inner = (module.weight.shape[1], module.weight.shape[0])[:: 1 if swap else -1]
            expect(name, "out_channels", module.out_channels, out * (module.groups if swap else 1))
            expect(name, "in_channels", module.in_channels, inner * (1 if swap else module.groups))
        elif isinstance(module, nn.Linear):
            expect(name, "out_features", module.out_features, module.weight.shape[0])
            expect(name, "in_features", module.in_features, module.weight.shape[1])
        elif isinstance(module, nn.modules.batchnorm._NormBase):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                if tensor is not None:
                    expect(name, "num_features", module.num_features, tensor.numel())
        elif isinstance(module, nn.GroupNorm):
            expect(name, "num_channels", module.num_channels, module.weight.numel())
            expect(name, "num_channels % num_groups", module.num_channels % module.num_groups, 0)
        elif isinstance(module, nn.LayerNorm):
            expect(name, "normalized_shape", tuple(module.normalized_shape), tuple(module.weight.shape))
        elif isinstance(module, nn.PReLU):
            expect(name, "num_parameters", module.num_parameters, module.weight.numel())
        handles += [
            module.register_forward_pre_hook(_checks_width(name, attribute, expect))
            for attribute in ("in_channels", "in_features", "num_features", "num_channels")
            if isinstance(getattr(module, attribute, None), int)
        ]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return wrong


def _checks_width(name: str, attribute: str, expect: Any) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        dim = -1 if isinstance(module, nn.Linear) else 1
        expect(name, attribute, getattr(module, attribute), args[0].shape[dim])

    return hook
