"""Atoms, the numbers of which labels are made: along the dimensions of weights, in layers, laid out as grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.copies import named_tensors
from lcprune.graph.labels import Labels

Atoms = NDArray[np.int64]
_LARGE = 1 << 16  # elements of a layer that is laid out over space too, such as a detector's answers for all boxes


@dataclass(frozen=True, eq=False)
class WeightAxis:
    """One dimension of one weight: atoms `start` to `start + length`."""

    weight: str
    dim: int
    start: int
    length: int

    @cached_property
    def atoms(self) -> Atoms:
        """All of them, in the order of the weight."""
        return np.arange(self.start, self.start + self.length)


Order = dict[WeightAxis, Atoms]  # which atoms are left along each axis, as they lie there


def weight_axes(model: nn.Module) -> list[WeightAxis]:
    """The dimensions of all weights; not those of length 1, along which nothing can be cut."""
    axes: list[WeightAxis] = []
    for name, tensor in named_tensors(model):
        for dim, length in enumerate(tensor.shape):
            if length > 1:
                start = axes[-1].start + axes[-1].length if axes else 0
                axes.append(WeightAxis(name, dim, start, length))
    return axes


def weight_labels(model: nn.Module, order: Mapping[WeightAxis, Atoms]) -> dict[str, Labels]:
    """Labels of all weights, which have these atoms along their axes."""
    layers: dict[str, list[Tensor]] = {name: [] for name, _ in named_tensors(model)}
    ranks = {name: tensor.ndim for name, tensor in named_tensors(model)}
    for axis, atoms in order.items():
        shape = [-1 if dim == axis.dim else 1 for dim in range(ranks[axis.weight])]
        layers[axis.weight].append(torch.from_numpy(atoms).reshape(shape))
    return {name: Labels(tuple(own), weight=True) for name, own in layers.items()}


@dataclass(frozen=True, eq=False)
class Grid:
    """An axis laid out as a grid: a cut must stay rectangular."""

    module: str
    atoms: Atoms  # one dimension per side and a last one for what does not matter
    sides: int  # 1 for equal parts side by side

    @property
    def options(self) -> int:
        """How many ways there are to keep the cut rectangular."""
        return self.sides if self.sides > 1 else 2

    def edges(self, option: int) -> tuple[Atoms, Atoms]:
        """What to tie; of parts, at last nothing."""
        if self.sides == 1 and option:
            return (np.empty(0, np.int64),) * 2
        first = np.broadcast_to(self.atoms[self._first(option)], self.atoms.shape)
        return first.ravel(), self.atoms.ravel()

    def rectangular(self, classes: Atoms) -> bool:
        """Whether units, laid out like `atoms`, already run along whole lines, so that any cut leaves a grid."""
        return any(bool((classes == classes[self._first(option)]).all()) for option in range(self.sides))

    def _first(self, option: int) -> tuple[slice, ...]:
        """Where the first of every line is: the axis that shrinks is the last side first; for parts, equal offsets."""
        shrinks = self.sides - 1 - option if self.sides > 1 else None
        return tuple(slice(None) if side == shrinks else slice(0, 1) for side in range(self.sides))


def tied(layer: Tensor, dim: int) -> tuple[Atoms, Atoms, Atoms]:
    """For every atom: the first of its line along `dim`, itself, and its place on the line."""
    shape = [-1 if d == dim else 1 for d in range(layer.ndim)]
    place = torch.arange(layer.shape[dim]).reshape(shape).expand_as(layer)
    return flat(layer.narrow(dim, 0, 1).expand_as(layer)), flat(layer), flat(place)


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


def flat(layer: Tensor) -> Atoms:
    """The atoms of a layer, one after another, in memory of their own."""
    array: Atoms = layer.reshape(-1).numpy().copy()
    return array
