"""The check of a surgery: the smaller network computes what the original does with the removed units silenced.

Both run on the example inputs and on random inputs like them, first in evaluation mode; if the cut reaches weights
that only training mode reads, in training mode too. Where a network decides by its values (non-maximum suppression,
top-k, a branch), both take the same decisions, and what they decide by is compared as outputs are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lcprune import bf16
from lcprune.batches import Inputs, arguments, random_like
from lcprune.copies import copy_with, unwrap
from lcprune.errors import PlanError
from lcprune.graph.arithmetic import Arithmetic
from lcprune.graph.decisions import Border, Decision
from lcprune.graph.outputs import Leaf
from lcprune.graph.silence import Numbers, Silence, Used
from lcprune.graph.skeleton import inputs_to, set_mode, untouched
from lcprune.plan import Plan, need_plan
from lcprune.surgery import set_number

# By the coarsest precision that took part: the largest difference, as a share of the output's own largest element, but
# at least of that share of the largest element of all outputs: one may be the small difference of large numbers.
_TOLERANCE = {torch.float64: (1e-9, 1e-3), torch.float32: (1e-3, 1e-1)}
_COARSE = (5e-2, 1e-1)
_SCALES = (0.3, 3.0)  # of the random inputs

Pass = tuple[list[Leaf] | Exception, list[Used], list[Decision]]  # outputs, numbers used, decisions taken


@dataclass(frozen=True)
class Verification:
    """How far the pruned and the silenced network are apart.

    Attributes:
        ok: they agree to rounding, and there was something to compare.
        max_error: largest absolute difference of any element; infinite if one is not finite where the other is.
        scale: largest absolute element of the silenced network.
        dtype: the precision of the comparison.
        mixing: modules in which channels influence one another, so that removing is not zeroing by design; there the
            reference was computed on the kept channels alone.
        sized: modules that compute with a number taken from a size; the reference used the pruned network's number.
        compared: elements that were compared and are neither zero nor infinite nor NaN: of outputs, and of what the
            network decides by.
        silent: outputs without such an element: nothing is known of them.
    """

    ok: bool
    max_error: float
    scale: float
    dtype: str
    mixing: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()
    compared: int = 0
    silent: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if not self.ok and not self.compared and not self.max_error:
            return f"nothing to compare: every output is zero or not finite ({self.dtype})"
        verdict = "exact to rounding" if self.ok else "WRONG"
        notes = ""
        if self.mixing:
            notes += f"; channels mix in {len(self.mixing)} modules, compared there without the removed ones"
        if self.sized:
            notes += f"; {len(self.sized)} modules compute with a size, taken from the pruned network"
        if self.silent:
            notes += f"; nothing to compare in {', '.join(self.silent)}"
        difference = f"largest difference {self.max_error:.3g} at outputs up to {self.scale:.3g} ({self.dtype})"
        return f"{verdict}: {difference}{notes}"


def verify(model: nn.Module, plan: Plan, example_inputs: Any, pruned: nn.Module | None = None) -> Verification:
    """Compare the pruned network with the original whose removed units are silenced at their consumers.

    Both run on the CPU, on the example inputs and on random ones of the same shapes and types, in double precision
    where the network can, so that rounding and mistakes are far apart. Random operators in `forward` give both the
    same numbers.

    Args:
        model: the original network; it is not changed.
        plan: the plan.
        example_inputs: as for `trace`; any values will do, real ones are best.
        pruned: the network to check; `plan.apply(model)` if None.

    Raises:
        PlanError: the outputs of the two have different shapes.
    """
    inner = unwrap(model)
    args, fresh = arguments(example_inputs), need_plan(plan).apply(inner)
    smaller = fresh if pruned is None else unwrap(pruned)
    failure: Exception | None = None
    with untouched(inner), untouched(smaller):
        # Code that names a precision (x.float(), half-precision constants) cannot run in double, nor parts of a
        # network in single precision if others are in half.
        for dtype in (torch.float64, torch.float32, None):
            if dtype is None:
                bf16.refuse_network(smaller, torch.device("cpu"), PlanError)
            try:
                return _Comparison(inner, plan, fresh, smaller, dtype).run(args)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                failure = failure or error
    raise PlanError(f"the networks cannot be run to compare them: {failure}") from failure


@dataclass(eq=False)
class _Comparison:
    """One comparison, in one precision (None: in those that the networks have)."""

    model: nn.Module
    plan: Plan
    fresh: nn.Module  # what the plan makes: numbers that follow from sizes are taken from it
    smaller: nn.Module  # what is checked
    dtype: torch.dtype | None
    error: float = 0.0
    share: float = 0.0  # the largest difference, as a share of what is tolerated
    scale: float = 0.0
    compared: Counter[str] = field(default_factory=Counter)  # of each output
    inside: int = 0  # of what the network decides by

    def run(self, args: Inputs) -> Verification:
        inputs = [_map(inputs_to(args, "cpu"), self._cast)]
        inputs += [random_like(inputs[0], scale, seed) for seed, scale in enumerate(_SCALES)]
        passes, own, least = self._run(self.smaller, inputs)
        numbers = passes
        if self.fresh is not self.smaller:
            numbers, own, _ = self._run(self.fresh, inputs, any(training for training, _ in passes))
        whole = copy_with(self.model, lambda name, tensor: self._cast(tensor).clone())
        silence = Silence(whole, self.plan.cuts, own, self.dtype)
        for (training, position), (got, _, decided) in passes.items():
            set_mode(silence.model, training)
            try:
                example, used = _map(inputs[position], torch.clone), numbers[training, position][1]
                expected = silence.compute(example, used, decided)
            except Exception:
                if position == 0:
                    raise
                continue  # the network itself refuses random inputs
            if isinstance(got, Exception):
                raise PlanError(
                    f"the pruned network fails where the original runs: {got}. If values decide which layers run, "
                    "trace it with more example inputs, on which all of them do"
                ) from got
            self._compare(expected, got, silence.borders, least, "train: " if training else "")
        compared = self.compared.total() + self.inside
        name = str(self.dtype or least).removeprefix("torch.")
        if self.dtype is not None and torch.finfo(least).eps > torch.finfo(self.dtype).eps:
            name += f", {str(least).removeprefix('torch.')} in places"
        return Verification(
            self.share <= 1 and compared > 0,
            self.error,
            self.scale,
            name,
            tuple(sorted(silence.mixed)),
            tuple(sorted(silence.sized)),
            compared,
            tuple(path for path, count in self.compared.items() if not count) if compared else (),
        )

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu", self.dtype if tensor.is_floating_point() else None)

    def _run(
        self, smaller: nn.Module, inputs: Sequence[Inputs], trains: bool | None = None
    ) -> tuple[dict[tuple[bool, int], Pass], set[str], torch.dtype]:
        """Run a copy of a cut network, which is freed before the larger one is copied.

        Args:
            smaller: the network.
            inputs: one after the other.
            trains: in training mode, too; None if it has cut weights that only that reads.

        Returns:
            Each pass by mode and input, the modules that compute with an attribute which the surgery changed, and the
            coarsest precision in which something was computed.
        """
        model = copy_with(smaller, lambda name, tensor: self._cast(tensor).clone())
        watch = Arithmetic()
        if smaller is self.fresh:  # the network that is checked keeps the numbers that it came with
            for change in watch.watched(self.plan.changes):
                set_number(model.get_submodule(change.module), change.attribute, change.index, change.new)
        run = Numbers(model, {}, self.dtype)
        passes: dict[tuple[bool, int], Pass] = {}
        for training in (False, True):
            if training and trains is None:
                trains = any(name in self.plan.cuts for name in run.unread.values())
            if training and not trains:
                break
            set_mode(model, training)
            for position, args in enumerate(inputs):
                # In-place operators of the network must not reach the caller's tensors, nor the second run.
                try:
                    with watch:
                        out: list[Leaf] | Exception = run.forward(_map(args, torch.clone))
                except Exception as error:
                    if position == 0:
                        raise
                    out = error
                passes[training, position] = out, run.used, run.decided
        return passes, {module for module, _ in watch.used}, run.least

    def _compare(
        self, expected: list[Leaf], got: list[Leaf], borders: Sequence[Border], least: torch.dtype, mode: str
    ) -> None:
        before, after = [_shape(leaf) for leaf in expected], [_shape(leaf) for leaf in got]
        if before != after:
            raise PlanError(f"the pruned network's outputs have shapes {after}, the original's {before}")
        pairs = []
        for (path, value), (_, other) in zip(expected, got, strict=True):
            if _is_float(value):
                pairs.append((_plain(value), _plain(other), least))
                self.compared[mode + path] += _telling(pairs[-1][0])
        self.inside += sum(_telling(mine) for mine, _, _ in borders)
        compared = [pair for pair in (*pairs, *borders) if pair[0].numel()]
        sizes = [float(a.nan_to_num(0.0, 0.0, 0.0).abs().max()) for a, _, _ in compared]
        largest = max(sizes, default=0.0)
        self.scale = max(self.scale, largest)
        for (a, b, precision), size in zip(compared, sizes, strict=True):
            error = _difference(a, b)
            self.error = max(self.error, error)
            tolerance, floor = _TOLERANCE.get(precision, _COARSE)
            tolerated = tolerance * max(size, floor * largest)
            if error > 0:
                self.share = max(self.share, error / tolerated if tolerated > 0 else math.inf)


def _map(args: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    mapped: Inputs = tree_map_only(Tensor, function, args)
    return mapped


def _is_float(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.is_floating_point() or leaf.is_complex()
    return isinstance(leaf, float) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc")


def _plain(value: Any) -> Tensor:
    """A dense, real tensor."""
    tensor = torch.as_tensor(value)
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _telling(tensor: Tensor) -> int:
    """How many elements say something."""
    return int((tensor.isfinite() & (tensor != 0)).sum())


def _shape(leaf: Leaf) -> Any:
    path, value = leaf
    if isinstance(value, (Tensor, np.ndarray)):
        return path, list(value.shape)
    return path if isinstance(value, float) else (path, value)


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite where one value is not finite and the other is not the same."""
    same = (a == b) | (a.isnan() & b.isnan())
    if not bool((a.isfinite() & b.isfinite() | same).all()):
        return math.inf
    return float(torch.where(same, 0.0, (a - b).abs()).max())
