"""The first run: find what depends on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from lcprune.batches import Inputs
from lcprune.copies import named_tensors
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.labels import Labels, Taken, Use, varying
from lcprune.graph.outputs import Leaf, tensors
from lcprune.graph.rules import Call, Step
from lcprune.graph.site import Site
from lcprune.graph.values import Values

Atoms = NDArray[np.int64]
_READERS = "_lcprune_readers"
_LARGE = 1 << 16  # elements of a layer that is laid out over space too, such as a detector's answers for all boxes
_LAYERS = frozenset({"aten::convolution", "aten::addmm", "aten::mm"})


@dataclass(frozen=True, eq=False)
class WeightAxis:
    """One dimension of one weight: atoms `start` to `start + length`."""

    weight: str
    dim: int
    start: int
    length: int


@dataclass(frozen=True, eq=False)
class Contraction:
    """A convolution or linear layer: `positions * product(shape)` multiply-adds for the whole batch.

    Attributes:
        module: where it ran.
        shape: the weight's shape.
        axes: per labelled dimension of the weight, the atoms along it, one array for each layer there.
        rows: the dimension that produces channels.
        columns: the dimension that consumes them.
        positions: how often the weight is applied.
        passing: channels among these positions (ECA, token mixing), as atoms along each such axis.
        written: elements of each produced channel.
        counted: it runs in evaluation mode, so it costs something.
    """

    module: str
    shape: tuple[int, ...]
    axes: Mapping[int, list[Atoms]]
    rows: int
    columns: int
    positions: int
    passing: tuple[Atoms, ...] = ()
    written: int = 0
    counted: bool = True


@dataclass(frozen=True, eq=False)
class Fact:
    """While `module` ran there was an axis of `size` with these atoms; Python code may keep that number."""

    size: int
    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Grid:
    """An axis laid out as a grid: a cut must stay rectangular.

    Attributes:
        module: where it happened.
        atoms: int64, one dimension per side and a last one for what does not matter.
        sides: how many sides the grid has; 1 for equal parts side by side.
    """

    module: str
    atoms: Atoms
    sides: int

    @property
    def options(self) -> int:
        """How many ways there are to keep the cut rectangular."""
        return self.sides if self.sides > 1 else 2

    def edges(self, option: int) -> tuple[Atoms, Atoms]:
        """What to tie: the axis that shrinks is the last side first; for parts, equal offsets, else nothing."""
        if self.sides == 1:
            first = np.broadcast_to(self.atoms[:1], self.atoms.shape)
            return (first.ravel(), self.atoms.ravel()) if option == 0 else (np.empty(0, np.int64),) * 2
        shrinks = self.sides - 1 - option
        index = tuple(slice(None) if side == shrinks else slice(0, 1) for side in range(self.sides))
        first = np.broadcast_to(self.atoms[index], self.atoms.shape)
        return first.ravel(), self.atoms.ravel()


@dataclass(frozen=True, eq=False)
class Part:
    """Channels that were taken by position out of an axis, and read; both sorted, without phantoms."""

    module: str
    site: Site
    atoms: Atoms
    whole: Atoms


class Discover(LabelPass):
    """Collects edges between atoms, frozen atoms and everything that later steps ask for.

    Args:
        model: the network's skeleton.
        values: as for `LabelPass`.
    """

    def __init__(self, model: nn.Module, values: Values | None = None) -> None:
        self.axes: list[WeightAxis] = []
        start = 0
        weights: dict[str, Labels] = {}
        for name, tensor in named_tensors(model):
            layers = []
            for dim, length in enumerate(tensor.shape):
                if length > 1:
                    self.axes.append(WeightAxis(name, dim, start, length))
                    shape = [length if d == dim else 1 for d in range(tensor.ndim)]
                    layers.append(torch.arange(start, start + length).reshape(shape))
                    start += length
            weights[name] = Labels(tuple(layers), weight=True)
        super().__init__(model, weights, values)
        self.atom_count = start
        self.phantom_count = 0
        self.reordered = False
        self.steps: list[Step] = []
        self.classes: Atoms | None = None  # atoms that depend on one another, once worked out
        self.edges: list[tuple[Atoms, Atoms]] = []
        self.lines: list[tuple[Atoms, Atoms, Atoms]] = []  # ties with the place of the tied atom along the line
        self.frozen: list[tuple[Atoms, str]] = []
        self.contractions: list[Contraction] = []
        self.grids: list[Grid] = []
        self.mixed: list[tuple[Atoms, str]] = []
        self.uses: dict[Use, set[int]] = {}  # of what was taken by position
        self.parts: dict[tuple[Site, bytes, bytes], Part] = {}
        self.facts: dict[str, list[Fact]] = {}
        self.group_uses: list[tuple[str, Atoms]] = []
        # Of every result of a layer with a weight: the layer, and operator and module of everything that reads it.
        self.results: list[tuple[str, list[tuple[str, str]]]] = []
        self.norm_runs: Counter[str] = Counter()
        self._slices: dict[tuple[int, int], tuple[Tensor, str, dict[int, Tensor]]] = {}
        self._seen: set[tuple[str, int]] = set()
        self._alive: list[Tensor] = []  # layers are told apart by identity, so none may be freed

    def forward(self, args: Inputs) -> list[Leaf]:
        found = super().forward(args)
        for tensor in tensors(found):
            for layer in self.labels_of(tensor).layers:
                self.freeze(layer, "reaches the network's output")
            self.read(self.labels_of(tensor))
        return found

    def meet(self, a: Tensor, b: Tensor, follower: int | None = None) -> Tensor:
        a, b = torch.broadcast_tensors(a, b)
        self._edge(a, b)
        return torch.where(a < 0, b, a)

    def tie(self, layer: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            if layer.shape[dim] > 1:
                first = layer.narrow(dim, 0, 1)
                self._edge(first.expand_as(layer), layer)
                self.lines.append(tied(layer, dim))
                layer = first
        return layer

    def freeze(self, layer: Tensor, reason: str) -> None:
        self.frozen.append((distinct(layer), f"{self.module}: {reason}" if self.module else reason))

    def phantom(self, length: int, reason: str = "") -> Tensor:
        # -1 is kept for "some phantom", so the first one here is -2.
        atoms = -2 - torch.arange(self.phantom_count, self.phantom_count + length)
        self.phantom_count += length
        if reason:
            self.freeze(atoms, reason)
        if length > 1:
            self._fact(atoms)
        return atoms

    def split(self, grid: Tensor, sides: int) -> None:
        self.grids.append(Grid(self.module, grid.numpy().copy(), sides))

    def slice(self, layer: Tensor, dim: int, start: int, part: Tensor) -> None:
        key = (id(layer), dim)
        _, _, parts = self._slices.setdefault(key, (layer, self.module, {}))
        parts[start] = part

    def take(self, taken: Taken, use: Use) -> None:
        atoms, whole = real(taken.part), real(taken.whole)
        self.uses.setdefault(use, set()).update(atoms.tolist())
        key = (taken.site, atoms.tobytes(), whole.tobytes())
        self.parts.setdefault(key, Part(self.module, taken.site, atoms, whole))

    def step(self, step: Step) -> None:
        if not self.steps or self.steps[-1] != step:  # a loop over channels may become shorter
            self.steps.append(step)

    def reorder(self) -> None:
        self.reordered = True

    def mix(self, layer: Tensor, dims: Sequence[int]) -> None:
        # Along `dims` different units influence one another unless they are all the same unit.
        self.mixed.append((columns(layer, dims).copy(), self.module))

    def contraction(
        self,
        weight: Labels,
        shape: Sequence[int],
        dims: tuple[int, int],
        positions: int,
        passing: Sequence[Tensor] = (),
        written: int | None = None,
    ) -> None:
        along = tuple(_numpy(layer) for layer in passing if layer.numel() > 1)
        axes: dict[int, list[Atoms]] = {}
        for layer in weight.layers:
            own = varying(layer)
            if len(own) == 1:
                axes.setdefault(next(iter(own)), []).append(_numpy(layer))
        self.contractions.append(
            Contraction(
                self.module, tuple(shape), axes, *dims, positions, along, written or positions, not self.model.training
            )
        )

    def use_groups(self, layer: Tensor) -> None:
        self.group_uses.append((self.module, _numpy(layer)))

    def after(self, call: Call, out: Any) -> None:
        self._note_readers(call, out)
        outputs = [self.labels_of(tensor) for tensor in tree_iter(out) if isinstance(tensor, Tensor)]
        for labels in (*call.labels, *outputs):
            for layer in labels.layers:
                if layer.numel() > 1:
                    self._fact(layer)

    def _note_readers(self, call: Call, out: Any) -> None:
        """Who reads what a layer gave: said once here for everyone who folds, joins or listens to layers."""
        if self.model.training:
            return
        for tensor in call.tensors:
            if hasattr(tensor, _READERS):
                getattr(tensor, _READERS).append((call.name, self.module))
        if call.name in _LAYERS and isinstance(out, Tensor):
            self.results.append((self.module, []))
            setattr(out, _READERS, self.results[-1][1])
        elif "batch_norm" in call.name:
            self.norm_runs[self.module] += 1

    def norms(self) -> dict[str, str]:
        """Layer -> the batch norm that alone reads what it gives; both run once."""
        runs = Counter(layer for layer, _ in self.results)
        found = {}
        for layer, readers in self.results:
            (operator, norm), *more = readers or [("", "")]
            single = not more and runs[layer] == 1 and self.norm_runs[norm] == 1
            if single and "batch_norm" in operator:
                found[layer] = norm
        return found

    def _fact(self, layer: Tensor) -> None:
        key = (self.module, id(layer))
        if key not in self._seen:
            self._seen.add(key)
            self._alive.append(layer)
            facts = self.facts.setdefault(self.module, [])
            for dim in sorted(varying(layer)):
                # A grid counts along each of its sides.
                line = layer[tuple(slice(None) if d == dim else slice(0, 1) for d in range(layer.ndim))]
                facts.append(Fact(layer.shape[dim], _numpy(line)))

    def _edge(self, a: Tensor, b: Tensor) -> None:
        self.edges.append((_numpy(a), _numpy(b)))

    def finish(self) -> None:
        """After the last pass: slices that tile an axis in equal parts are a split written by hand."""
        for (_, dim), (layer, module, parts) in self._slices.items():
            starts = sorted(parts)
            length = parts[starts[0]].shape[dim]
            tiles = list(range(0, layer.shape[dim], length))
            if len(starts) > 1 and starts == tiles and all(part.shape[dim] == length for part in parts.values()):
                stacked = torch.stack([parts[start] for start in starts])
                self.grids.append(Grid(module, stacked.numpy().copy(), 1))


def tied(layer: Tensor, dim: int) -> tuple[Atoms, Atoms, Atoms]:
    """For every atom: the first of its line along `dim`, itself, and its place on the line."""
    shape = [-1 if d == dim else 1 for d in range(layer.ndim)]
    place = torch.arange(layer.shape[dim]).reshape(shape).expand_as(layer)
    return _numpy(layer.narrow(dim, 0, 1).expand_as(layer)), _numpy(layer), _numpy(place)


def columns(layer: Tensor, dims: Sequence[int]) -> Atoms:
    """The atoms with those along `dims` in the first dimension."""
    array: Atoms = layer.movedim(list(dims), list(range(len(dims)))).flatten(0, len(dims) - 1).numpy()
    return array


def real(layer: Tensor) -> Atoms:
    """The atoms of a layer, each once, sorted, without phantoms."""
    atoms = distinct(layer)
    return atoms[atoms >= 0]


def distinct(layer: Tensor) -> Atoms:
    """The atoms of a layer, each once, sorted."""
    atoms = layer.reshape(-1).numpy()
    if len(atoms) < _LARGE:
        return np.unique(atoms)
    low = int(atoms.min())
    seen = np.zeros(int(atoms.max()) - low + 1, dtype=bool)
    seen[atoms - low] = True
    return np.flatnonzero(seen) + low


def _numpy(layer: Tensor) -> Atoms:
    array: Atoms = layer.reshape(-1).numpy().copy()
    return array
