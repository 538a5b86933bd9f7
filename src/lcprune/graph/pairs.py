"""Which channels met, were tied or influenced one another in the uncut network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcprune.graph.atoms import Atoms, WeightAxis
from lcprune.graph.discover import Discover

_LONGEST_LINE = 1 << 16
_NONE: Atoms = np.empty(0, np.int64)


class Pairs:
    """The first run, arranged to be asked which atoms met, were tied or influenced one another."""

    def __init__(self, discovered: Discover) -> None:
        self.discovered, self.count = discovered, discovered.atom_count + 1
        a = np.concatenate([edge[0] for edge in discovered.edges] or [_NONE])
        b = np.concatenate([edge[1] for edge in discovered.edges] or [_NONE])
        self.keys = np.sort(self._key(a, b))
        lines = [self._line_key(*line) for line in discovered.lines]
        self.line_keys = np.sort(np.concatenate(lines or [_NONE]))
        both = np.maximum(np.stack([a, b], axis=1), -1)
        self._either = np.concatenate([both, both[:, ::-1]])  # every pair both ways round
        # Channels that influence one another, as sums of random numbers: equal sums are of equal channels.
        self._columns = [_once(atoms) for atoms in discovered.mixed]
        self._numbers = np.random.default_rng(0).integers(1, 1 << 62, self.count)
        self._numbers[-1] = 0  # of phantoms
        self._partners: dict[WeightAxis, dict[int, list[int]]] = {}

    def _key(self, a: Atoms, b: Atoms) -> Atoms:
        return (np.maximum(a, -1) + 1) * self.count + np.maximum(b, -1) + 1

    def _line_key(self, first: Atoms, own: Atoms, place: Atoms) -> Atoms:
        return self._key(first, own) * _LONGEST_LINE + np.minimum(place, _LONGEST_LINE - 1)

    def tied(self, first: Atoms, own: Atoms, place: Atoms) -> bool:
        """Whether each atom was tied to the same first one, at the same place (the same group of a convolution)."""
        known = among(self._line_key(first, own, place), self.line_keys)
        return bool((known | (first < 0) | (own < 0)).all())

    def met(self, a: Atoms, b: Atoms, strict: bool = False) -> bool:
        """Whether each pair met before; unless `strict`, a phantom (padding) may meet anyone."""
        # In either order: torch may compute the same product the other way round.
        known = among(self._key(a, b), self.keys) | among(self._key(b, a), self.keys) | (a == b)
        return bool((known if strict else known | (a < 0) | (b < 0)).all())

    def sums(self, columns: Atoms) -> Atoms:
        """For each column of atoms that influence one another, the sum of their numbers."""
        result: Atoms = self._numbers[_once(columns)].sum(0).ravel()
        return result

    def mixing(self, kept: NDArray[np.bool_]) -> Atoms:
        """The sums of what is left of all such columns, sorted."""
        numbers = np.where(kept, self._numbers, 0)
        return np.sort(np.concatenate([numbers[own].sum(0).ravel() for own in self._columns] or [_NONE]))

    def partners(self, axis: WeightAxis) -> dict[int, list[int]]:
        """Delivered atom -> the positions of a weight's axis that read it, in order."""
        if axis not in self._partners:
            found = self._partners[axis] = {}
            inside = (self._either[:, 0] >= axis.start) & (self._either[:, 0] < axis.start + axis.length)
            for own, met in np.unique(self._either[inside], axis=0).tolist():
                found.setdefault(met, []).append(own)
        return self._partners[axis]


def among(keys: Atoms, known: Atoms) -> NDArray[np.bool_]:
    """Which keys are in the sorted array `known`."""
    if not len(known):
        return np.zeros(len(keys), bool)
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
    return found


def _once(columns: Atoms) -> Atoms:
    """The atoms of each column, sorted, each once and then -1."""
    atoms = np.sort(np.maximum(columns, -1), axis=0)
    atoms[1:][atoms[1:] == atoms[:-1]] = -1
    return atoms
