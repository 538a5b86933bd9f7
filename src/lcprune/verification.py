"""Proof of a surgery: the smaller network computes what the original does with the removed units silenced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map_only

from lcprune.errors import PlanError
from lcprune.graph.silence import Numbers, Silence
from lcprune.graph.skeleton import copy_with, inputs_to, unwrap
from lcprune.plan import Plan

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class Verification:
    """How far the pruned and the silenced network are apart.

    Attributes:
        ok: they agree to rounding.
        max_error: largest absolute difference of any output element.
        scale: largest absolute output element of the silenced network.
        dtype: the precision of the comparison.
        mixing: modules in which channels influence one another, so that removing is not zeroing by design; there the
            reference was computed on the kept channels alone.
        sized: modules that compute with a number taken from a size; the reference used the pruned network's number.
    """

    ok: bool
    max_error: float
    scale: float
    dtype: str
    mixing: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "exact to rounding" if self.ok else "WRONG"
        note = (
            f"; channels mix in {len(self.mixing)} modules, compared there without the removed ones"
            if self.mixing
            else ""
        )
        if self.sized:
            note += f"; {len(self.sized)} modules compute with a size, taken from the pruned network"
        difference = f"largest difference {self.max_error:.3g} at outputs up to {self.scale:.3g} ({self.dtype})"
        return f"{verdict}: {difference}{note}"


def verify(model: nn.Module, plan: Plan, example_inputs: Any, pruned: nn.Module | None = None) -> Verification:
    """Compare the pruned network with the original whose removed units are silenced at their consumers.

    Both run on the CPU, in double precision where the network can, so that rounding and mistakes are far apart.

    Args:
        model: the original network; it is not changed.
        plan: the plan.
        example_inputs: as for `trace`; any values will do, real ones are best.
        pruned: the network to check; `plan.apply(model)` if None.
    """
    inner = unwrap(model)
    args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    smaller = plan.apply(inner) if pruned is None else unwrap(pruned)
    try:
        return _compare(inner, plan, smaller, args, torch.float64)
    except (RuntimeError, TypeError, NotImplementedError):
        # Code that names a precision (x.float(), half-precision constants) cannot run in double.
        return _compare(inner, plan, smaller, args, torch.float32)


def _compare(
    model: nn.Module, plan: Plan, smaller: nn.Module, args: tuple[Any, ...], dtype: torch.dtype
) -> Verification:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to("cpu", dtype) if tensor.is_floating_point() else tensor.cpu()

    inputs = tree_map_only(Tensor, cast, inputs_to(args, "cpu"))
    got, numbers, narrow = _run_cut(smaller, inputs, cast)
    run = Silence(copy_with(model, lambda name, tensor: cast(tensor).clone()).eval(), plan.cuts, numbers)
    reference = run.forward(inputs)
    expected, found = _floats(reference), _floats(got)
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        raise PlanError(
            f"the pruned network's outputs have shapes {[list(t.shape) for t in found]}, "
            f"the original's {[list(t.shape) for t in expected]}"
        )
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if a.numel()]
    error = max([float((a - b).abs().max()) for a, b in pairs] or [0.0])
    scale = max([float(a.abs().max()) for a, _ in pairs] or [0.0])
    # Code that casts to single precision on the way rounds accordingly, whatever precision it is run in.
    ok = error <= _TOLERANCE[torch.float32 if narrow else dtype] * max(scale, 1e-30)
    name = str(dtype).removeprefix("torch.") + (", float32 in places" if narrow and dtype is torch.float64 else "")
    return Verification(ok, error, scale, name, tuple(sorted(run.mixed)), tuple(sorted(run.sized)))


def _run_cut(smaller: nn.Module, inputs: Any, cast: Callable[[Tensor], Tensor]) -> tuple[Any, Any, bool]:
    """Run a copy of the cut network, which is freed before the larger one is copied."""
    run = Numbers(copy_with(smaller, lambda name, tensor: cast(tensor).clone()).eval())
    # In-place operators of the network must not reach the caller's tensors, nor the second run.
    out = run.forward(tree_map_only(Tensor, torch.clone, inputs))
    return out, run.used, run.narrow


def _floats(out: Any) -> list[Tensor]:
    return [tensor for tensor in tree_iter(out) if isinstance(tensor, Tensor) and tensor.is_floating_point()]
