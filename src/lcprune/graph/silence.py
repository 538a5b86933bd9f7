"""The reference for `verify`: the uncut network with removed channels silenced where they are consumed.

At every convolution and matrix product the removed channels of the input are set to zero, so that whatever they
carry (a batch-norm bias, sigmoid(0) = 0.5) has no effect. Where channels influence one another in other ways
(normalisation, reduction or softmax over channels) zero is not the same as absent: there the operator is run on
the kept channels alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_iter, tree_map_only, tree_unflatten

from lcprune.batches import Inputs
from lcprune.graph.atoms import weight_axes, weight_labels
from lcprune.graph.decisions import Border, Decision, decided_by, decides, outputs, taken, written_down
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.labels import Labels, varying
from lcprune.graph.noise import without_chance
from lcprune.graph.outputs import Leaf
from lcprune.graph.rules import Call, Rule
from lcprune.surgery import Cuts

Used = tuple[str, list[float | None]]  # an element-wise operator and the numbers among its arguments
_WRITTEN = "_lcprune_written"  # a tensor that the code made of numbers alone: torch.tensor(x.shape[1])


class Numbers(LabelPass):
    """Run a network on data and write down the plain numbers that its element-wise operators use, and its decisions.

    Random numbers are the same for every element, so that a cut network draws the same ones as the whole one.

    Args:
        model: the network, on the CPU.
        weights: labels of parameters and buffers, by name.
        precision: of constants that the code makes of numbers alone, whatever precision it names; None for that one.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Labels], precision: torch.dtype | None) -> None:
        super().__init__(model, weights)
        self.precision = precision
        self.used: list[Used] = []
        self.decided: list[Decision] = []
        self.least = torch.float64  # the coarsest precision in which something was computed
        self._random = torch.Generator()

    def forward(self, args: Inputs) -> list[Leaf]:
        self.used, self.decided = [], []
        self._random.manual_seed(0)
        return super().forward(args)

    def execute(self, call: Call, rule: Rule) -> Any:
        out = self.result(call, rule)
        return self.decide(call, out) if decides(call, out) and not all(map(_is_written, call.tensors)) else out

    def result(self, call: Call, rule: Rule) -> Any:
        """Run the operator; a random one gives the same value in every place, a constant has the wanted precision."""
        out = call.func(*call.args, **call.kwargs)
        if torch.Tag.nondeterministic_seeded in call.func.tags:
            uniform, normal = torch.rand((), generator=self._random), torch.randn((), generator=self._random)
            without_chance(call, out, float(uniform), float(normal))
        constant = isinstance(out, Tensor) and out.is_floating_point() and not call.inplace and _of_numbers(call)
        return out.to(self.precision) if constant and self.precision is not None else out

    def decide(self, call: Call, out: Any) -> Any:
        """The result of an operator that takes a decision."""
        taken = [written_down(value) for value in outputs(out)]
        self.decided.append(Decision(call.name, decided_by(call), taken, self.least))
        return out

    def after(self, call: Call, out: Any) -> None:
        if _of_numbers(call):
            for tensor in tree_iter(out):
                if isinstance(tensor, Tensor):
                    setattr(tensor, _WRITTEN, True)
        elif isinstance(out, Tensor) and out.is_floating_point() and out.dtype != self.least:
            self.least = max(self.least, out.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        # Others may come and go: a cut network copies at other places. What has a number there may have several here.
        if torch.Tag.pointwise in call.func.tags and call.name != "aten::clone" and any(map(_is_number, call.leaves)):
            self.used.append((call.name, _numbers(call)))


class Silence(Numbers):
    """Run the uncut network on real data with some channels silenced.

    Args:
        model: the uncut network, on the CPU.
        kept: weight name -> dimension -> kept positions.
        own: modules whose numbers are never taken, since the surgery changed an attribute they compute with.
        precision: as for `Numbers`.
    """

    def __init__(self, model: nn.Module, kept: Cuts, own: set[str], precision: torch.dtype | None) -> None:
        axes = weight_axes(model)
        super().__init__(model, weight_labels(model, {axis: axis.atoms for axis in axes}), precision)
        # The last entry answers for phantoms, whose label is -1: padding stays.
        self.gone = torch.zeros(sum(axis.length for axis in axes) + 1, dtype=torch.bool)
        for axis in axes:
            if axis.dim in kept.get(axis.weight, {}):
                self.gone[np.delete(axis.atoms, kept[axis.weight][axis.dim])] = True
        self.own = own
        self.numbers: Sequence[Used] = ()
        self.decisions: Iterator[Decision] = iter(())
        self.borders: list[Border] = []
        self.sized: set[str] = set()
        self.mixed: set[str] = set()

    def compute(self, args: Inputs, numbers: Sequence[Used], decisions: Sequence[Decision]) -> list[Leaf]:
        """Run the network.

        Args:
            args: its inputs.
            numbers: what the cut network used, `Numbers.used`. A number computed from a size (1 / sqrt(fan-in)) changes
                with the cut because the code says so; the reference uses the new one and reports where.
            decisions: those of the network that is checked. They are taken here too; `borders` has what they were
                taken by.
        """
        self.numbers, self.decisions, self.borders = numbers, iter(decisions), []
        return self.forward(args)

    def prepare(self, call: Call) -> Call:
        place = len(self.used)
        if torch.Tag.pointwise not in call.func.tags or place >= len(self.numbers) or self.own & set(self.stack):
            return call
        name, numbers = self.numbers[place]
        if name != call.name or len(numbers) != len(call.leaves):
            return call
        pairs = enumerate(zip(_numbers(call), numbers, strict=True))
        changed = {place: new for place, (old, new) in pairs if old is not None and new is not None and old != new}
        if not changed:
            return call
        self.sized.add(self.module)
        values, spec = tree_flatten((call.args, call.kwargs))
        for position, new in changed.items():
            value = values[position]
            values[position] = torch.full_like(value, new) if isinstance(value, Tensor) else new
            if isinstance(value, Tensor):
                setattr(values[position], _WRITTEN, True)
        args, kwargs = tree_unflatten(values, spec)
        return Call(call.func, args, kwargs, self.labels_of)

    def result(self, call: Call, rule: Rule) -> Any:
        if rule.contracts and call.labelled:
            args, kwargs = tree_map_only(Tensor, self._silenced, (call.args, call.kwargs))
            out = call.func(*args, **kwargs)
        else:
            out = super().result(call, rule)
        if rule.mixes and call.labelled:
            self._without(call, out)
        elif rule.contracts and "convolution" in call.name:
            self._without(call, out, space_only=True)
        return out

    def decide(self, call: Call, out: Any) -> Any:
        """Decide as the network that is checked did, unless it decides by fewer channels, or by something else."""
        other = next(self.decisions, None)
        layers = [layer for labels in call.labels for layer in labels.layers]
        if other is None or any(bool(self.gone[layer].any()) for layer in layers):
            return out
        if other.name != call.name:
            self.decisions = iter(())
            return out
        by = decided_by(call)
        if [shape for shape, _ in by] != [shape for shape, _ in other.by]:
            return out
        self.borders += [(mine, theirs, other.least) for (_, mine), (_, theirs) in zip(by, other.by, strict=True)]
        return taken(out, other)

    def _silenced(self, tensor: Tensor) -> Tensor:
        # Weights too: a linear layer may read what another made of constants alone.
        for layer in self.labels_of(tensor).layers:
            removed = self.gone[layer]
            if bool(removed.any()):
                tensor = tensor.masked_fill(removed.expand(tensor.shape), 0)
        return tensor

    def _kept(self, tensor: Tensor) -> dict[int, Tensor]:
        """Per dimension along which channels are removed, the positions that stay."""
        result = {}
        for layer in self.labels_of(tensor).layers:
            removed = self.gone[layer]
            for dim in varying(layer) if bool(removed.any()) else ():
                # Of a grid (heads, channels of each) whole slices go, along one of its sides.
                line = removed.movedim(dim, 0).reshape(layer.shape[dim], -1).any(1)
                if bool((removed == line.reshape([-1 if d == dim else 1 for d in range(layer.ndim)])).all()):
                    result[dim] = (~line).nonzero().reshape(-1)
                    break
        return result

    def _without(self, call: Call, out: Any, space_only: bool = False) -> None:
        """Run the operator on the kept channels and put what it gives into their places in `out`.

        Of a convolution only for channels that are laid along its space (ECA): `space_only`.
        """
        kept = {id(tensor): self._kept(tensor) for tensor in call.tensors}
        x = call.tensors[0]
        if space_only:
            kept = {id(x): {dim: index for dim, index in kept[id(x)].items() if dim > 1}}
        if not any(kept.values()):
            return

        def shorten(tensor: Tensor) -> Tensor:
            short = self._silenced(tensor) if space_only else tensor
            for dim, index in kept.get(id(tensor), {}).items():
                short = short.index_select(dim, index)
            return short

        args, kwargs = tree_map_only(Tensor, shorten, (call.args, call.kwargs))
        small = call.func(*_resized(call, args), **kwargs)
        first, first_small = (out, small) if isinstance(out, Tensor) else (out[0], small[0])
        index = kept[id(x)]
        if first.shape != x.shape:  # some axes were reduced, others are shorter: these are found by their length
            lengths = {x.shape[dim]: positions for dim, positions in index.items()}
            index = {dim: lengths[n] for dim, n in enumerate(first.shape) if n != first_small.shape[dim]}
        elif not index:
            return
        before = first.clone()
        places = [index.get(dim, torch.arange(n)) for dim, n in enumerate(first.shape)]
        first[tuple(own.reshape(-1, *[1] * (first.ndim - dim - 1)) for dim, own in enumerate(places))] = first_small
        if not torch.allclose(before, first, rtol=1e-9, atol=1e-30, equal_nan=True):
            self.mixed.add(self.module)


def _resized(call: Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers among the arguments that name the length of the channel axis."""
    changed = list(args)
    if call.name == "aten::native_group_norm":
        changed[4] = args[0].shape[1]
        if changed[6] == call.args[0].shape[1]:
            changed[6] = args[0].shape[1]
    elif call.name in ("aten::native_layer_norm", "aten::_fused_rms_norm", "aten::rms_norm"):
        changed[1] = list(args[0].shape[args[0].ndim - len(args[1]) :])
    return tuple(changed)


def _of_numbers(call: Call) -> bool:
    """Whether an operator makes a tensor of numbers alone."""
    return not call.tensors or call.name == "aten::lift_fresh" or all(map(_is_written, call.tensors))


def _is_written(tensor: Tensor) -> bool:
    return bool(getattr(tensor, _WRITTEN, False))


def _is_number(value: Any) -> bool:
    """Whether an argument is a plain number, or a tensor that the code made of such."""
    return _is_written(value) if isinstance(value, Tensor) else isinstance(value, (int, float))


def _numbers(call: Call) -> list[float | None]:
    return [_number(value) for value in call.leaves]


def _number(value: Any) -> float | None:
    """The plain number that an argument is; None for all else."""
    if isinstance(value, Tensor):
        return float(value) if _is_written(value) and value.numel() == 1 and not value.is_complex() else None
    return value if isinstance(value, (int, float)) else None
