"""Decisions that a network takes by its values: which boxes stay, where the largest lies, how often a loop runs.

Two networks that agree to rounding may decide otherwise where two values are all but equal, and return other boxes.
So the reference of `verify` takes the decisions of the cut network, and what both decide by is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lcprune.graph.rules import Call

_SAMPLE = 1 << 16  # elements of a tensor that are compared


# What two networks decided by at one place, and the coarsest precision in which something was computed before.
Border = tuple[Tensor, Tensor, torch.dtype]


@dataclass(frozen=True, eq=False)
class Decision:
    """One operator that turns floating-point numbers into whole numbers, truth values or a plain number."""

    name: str
    by: list[tuple[torch.Size, Tensor]]  # of each floating-point input its shape, and some elements
    taken: list[Any]  # all outputs, the floating-point ones without their data
    least: torch.dtype  # the coarsest precision in which something was computed before


def decides(call: Call, out: Any) -> bool:
    """Whether an operator takes a decision."""
    return any(map(_is_float, call.tensors)) and not all(map(_is_float, outputs(out)))


def decided_by(call: Call) -> list[tuple[torch.Size, Tensor]]:
    """The floating-point inputs of an operator: their shapes, and elements at the same random places each time."""
    return [(tensor.shape, _sample(tensor)) for tensor in call.tensors if _is_float(tensor)]


def taken(own: Any, decided: Decision) -> Any:
    """The result with the decisions of another network; values that come with them stay as they are."""
    if not isinstance(own, (Tensor, tuple, list)):
        return decided.taken[0]
    result = []
    for mine, theirs in zip(outputs(own), decided.taken, strict=True):
        if mine.shape == theirs.shape:
            result.append(mine if _is_float(theirs) else mine.copy_(theirs))
        elif _is_float(theirs):
            return own  # values of another number than there, such as those of `unique`
        else:
            result.append(theirs.clone())
    return result[0] if isinstance(own, Tensor) else tuple(result)


def outputs(out: Any) -> list[Any]:
    """What an operator gives, one by one."""
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def written_down(value: Any) -> Any:
    """What is kept of an output."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_like(value, device="meta") if value.is_floating_point() else value.clone()


def _sample(tensor: Tensor) -> Tensor:
    if tensor.numel() <= _SAMPLE:
        return tensor.clone()
    places = torch.randint(tensor.numel(), (_SAMPLE,), generator=torch.Generator().manual_seed(0))
    return tensor.reshape(-1)[places]
