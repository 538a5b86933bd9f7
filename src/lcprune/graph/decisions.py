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


@dataclass(frozen=True, eq=False)
class Decision:
    """One operator that turns floating-point numbers into whole numbers, truth values or a plain number.

    Attributes:
        name: the operator.
        by: of each floating-point input its shape, and some elements.
        taken: all outputs.
        least: the coarsest precision in which something was computed before.
    """

    name: str
    by: list[tuple[torch.Size, Tensor]]
    taken: list[Any]
    least: torch.dtype


@dataclass(frozen=True, eq=False)
class Border:
    """What two networks decided by, at one place."""

    path: str
    expected: Tensor
    got: Tensor
    least: torch.dtype


def decides(call: Call, out: Any) -> bool:
    """Whether an operator takes a decision."""
    return any(map(_is_float, call.tensors)) and any(not _is_float(value) for value in _outputs(out))


def decision(call: Call, out: Any, least: torch.dtype) -> Decision:
    """What is written down of it."""
    taken = [value.clone() if isinstance(value, Tensor) else value for value in _outputs(out)]
    return Decision(call.name, decided_by(call), taken, least)


def decided_by(call: Call) -> list[tuple[torch.Size, Tensor]]:
    """The floating-point inputs of an operator: their shapes, and elements at the same random places each time."""
    return [(tensor.shape, _sample(tensor)) for tensor in call.tensors if _is_float(tensor)]


def taken(own: Any, decided: Decision) -> Any:
    """The result with the decisions of another network; values that come with them stay, where they have places."""
    outputs = _outputs(own)
    fits = len(outputs) == len(decided.taken) and all(map(_alike, outputs, decided.taken))
    result = []
    for mine, theirs in zip(outputs if fits else decided.taken, decided.taken, strict=True):
        if not isinstance(theirs, Tensor):
            return theirs
        result.append(mine if _is_float(theirs) else mine.copy_(theirs) if fits else theirs.clone())
    return result[0] if isinstance(own, Tensor) else tuple(result)


def _outputs(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape


def _sample(tensor: Tensor) -> Tensor:
    if tensor.numel() <= _SAMPLE:
        return tensor.clone()
    places = torch.randint(tensor.numel(), (_SAMPLE,), generator=torch.Generator().manual_seed(0))
    return tensor.reshape(-1)[places]
