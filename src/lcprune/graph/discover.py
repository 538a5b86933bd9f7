"""The first run: find what depends on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from lcprune.batches import Inputs
from lcprune.graph.atoms import Atoms, Grid, columns, distinct, flat, real, tied, weight_axes, weight_labels
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.labels import Labels, Taken, Use, varying
from lcprune.graph.outputs import Leaf, tensors
from lcprune.graph.rules import Call, Step
from lcprune.graph.site import CodeSite, own_code
from lcprune.graph.values import Values

_READERS = "_lcprune_readers"
_LAYERS = frozenset({"aten::convolution", "aten::addmm", "aten::mm"})


@dataclass(frozen=True, eq=False)
class Contraction:
    """A convolution or linear layer: `positions * product(shape)` multiply-adds for the whole batch."""

    module: str
    shape: tuple[int, ...]  # the weight's
    axes: Mapping[int, list[Atoms]]  # per labelled dimension of the weight, the atoms along it, for each layer there
    rows: int  # the dimension that produces channels
    columns: int  # the dimension that consumes them
    positions: int  # how often the weight is applied
    passing: tuple[Atoms, ...]  # channels among these positions (ECA, token mixing), along each such axis
    written: int  # elements of each produced channel
    counted: bool  # it runs in evaluation mode, so it costs something


@dataclass(frozen=True, eq=False)
class Fact:
    """While `module` ran there was an axis of `size` with these atoms; Python code may keep that number."""

    size: int
    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Part:
    """Channels that were taken by position out of an axis, and read; both sorted, without phantoms."""

    module: str
    site: CodeSite
    atoms: Atoms
    whole: Atoms


class Discover(LabelPass):
    """Collects edges between atoms, frozen atoms and everything that later steps ask for."""

    def __init__(self, model: nn.Module, values: Values | None = None) -> None:
        self.axes = weight_axes(model)
        super().__init__(model, weight_labels(model, {axis: axis.atoms for axis in self.axes}), values)
        lengths = np.array([axis.length for axis in self.axes], np.int64)
        self.axis_of = np.repeat(np.arange(len(lengths)), lengths)  # of every atom, the position of its axis
        self.atom_count = len(self.axis_of)
        self.phantom_count = 0
        self.reordered = False
        self.steps: list[tuple[Step, CodeSite]] = []
        self.classes: Atoms | None = None  # of atoms that depend on one another, once `resolve` has worked it out
        self.edges: list[tuple[Atoms, Atoms]] = []
        self.lines: list[tuple[Atoms, Atoms, Atoms]] = []  # ties with the place of the tied atom along the line
        self.frozen: list[tuple[Atoms, str]] = []
        self.contractions: list[Contraction] = []
        self.grids: list[Grid] = []
        self.mixed: list[Atoms] = []  # by column, channels that influence one another
        self.uses: dict[Use, set[int]] = {}  # of what was taken by position
        self.parts: dict[tuple[CodeSite, bytes, bytes], Part] = {}
        self.facts: dict[str, list[Fact]] = {}
        self.group_uses: list[tuple[str, Atoms]] = []
        # Of every result of a layer with a weight: the layer, and operator and module of everything that reads it.
        self.results: list[tuple[str, list[tuple[str, str]]]] = []
        self.norm_runs: Counter[str] = Counter()
        # Layers are told apart by identity, so none may be freed.
        self._slices: dict[tuple[int, int], tuple[Tensor, str, dict[int, Tensor]]] = {}
        self._seen: dict[tuple[str, int], Tensor] = {}

    def forward(self, args: Inputs) -> list[Leaf]:
        found = super().forward(args)
        for tensor in tensors(found):
            for layer in self.labels_of(tensor).layers:
                self.freeze(layer, "reaches the network's output")
            self.read(self.labels_of(tensor))
        return found

    def meet(self, a: Tensor, b: Tensor, follower: int | None = None) -> Tensor:
        a, b = torch.broadcast_tensors(a, b)
        self.edges.append((flat(a), flat(b)))
        return torch.where(a < 0, b, a)

    def tie(self, layer: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            if layer.shape[dim] > 1:
                first, own, place = tied(layer, dim)
                self.edges.append((first, own))
                self.lines.append((first, own, place))
                layer = layer.narrow(dim, 0, 1)
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
        self._slices.setdefault((id(layer), dim), (layer, self.module, {}))[2][start] = part

    def take(self, taken: Taken, use: Use) -> None:
        atoms, whole = real(taken.part), real(taken.whole)
        self.uses.setdefault(use, set()).update(atoms.tolist())
        key = (taken.site, atoms.tobytes(), whole.tobytes())
        self.parts.setdefault(key, Part(self.module, taken.site, atoms, whole))

    def step(self, step: Step) -> None:
        placed = step, own_code(self.site())
        if not self.steps or self.steps[-1] != placed:  # a loop over channels may become shorter
            self.steps.append(placed)

    def reorder(self) -> None:
        self.reordered = True

    def mix(self, layer: Tensor, dims: Sequence[int]) -> None:
        # Along `dims` different units influence one another unless they are all the same unit.
        self.mixed.append(columns(layer, dims).copy())

    def contraction(
        self,
        weight: Labels,
        shape: Sequence[int],
        dims: tuple[int, int],
        positions: int,
        passing: Sequence[Tensor] = (),
        written: int | None = None,
    ) -> None:
        along = tuple(flat(layer) for layer in passing if layer.numel() > 1)
        axes: dict[int, list[Atoms]] = {}
        for layer in weight.layers:
            own = list(varying(layer))
            if len(own) == 1:
                axes.setdefault(own[0], []).append(flat(layer))
        counted = not self.model.training
        self.contractions.append(
            Contraction(self.module, tuple(shape), axes, *dims, positions, along, written or positions, counted)
        )

    def use_groups(self, layer: Tensor) -> None:
        self.group_uses.append((self.module, flat(layer)))

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
        if (self.module, id(layer)) not in self._seen:
            self._seen[self.module, id(layer)] = layer
            facts = self.facts.setdefault(self.module, [])
            for dim in sorted(varying(layer)):
                # A grid counts along each of its sides.
                line = layer[tuple(slice(None) if d == dim else slice(0, 1) for d in range(layer.ndim))]
                facts.append(Fact(layer.shape[dim], flat(line)))

    def finish(self) -> None:
        """After the last pass: slices that tile an axis in equal parts are a split written by hand."""
        for (_, dim), (layer, module, parts) in self._slices.items():
            starts = sorted(parts)
            length = parts[starts[0]].shape[dim]
            tiles = list(range(0, layer.shape[dim], length))
            if len(starts) > 1 and starts == tiles and all(part.shape[dim] == length for part in parts.values()):
                stacked = torch.stack([parts[start] for start in starts])
                self.grids.append(Grid(module, stacked.numpy().copy(), 1))
