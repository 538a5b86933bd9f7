"""From edges between atoms to units and groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcprune.cost import Axis
from lcprune.graph.channel_graph import Group, Member
from lcprune.graph.discover import Atoms, Discover, WeightAxis

_NONE: Atoms = np.empty(0, np.int64)
_ONE_UNIT = "all its channels depend on one another, so that none can go alone"


@dataclass(frozen=True, eq=False)
class Units:
    """Atoms sorted into units.

    Attributes:
        unit_class: int64 per atom (weights first, then phantoms): the representative of its class.
        group_of: int64 per atom: its group's position, -1 if frozen.
        groups: the prunable groups.
        classes: per group, the class of each of its units.
        reasons: class -> why it is frozen.
    """

    unit_class: Atoms
    group_of: Atoms
    groups: tuple[Group, ...]
    classes: tuple[Atoms, ...]
    reasons: Mapping[int, str]

    def position(self, atoms: Atoms) -> Atoms:
        """Where atoms (phantoms included) stand in the arrays above."""
        return np.where(atoms >= 0, atoms, len(self.unit_class) - self._phantoms + (-2 - atoms))

    def classes_of(self, atoms: Atoms) -> set[int]:
        """The classes that atoms belong to."""
        return set(self.unit_class[self.position(atoms[atoms != -1])].tolist())

    @property
    def _phantoms(self) -> int:
        return len(self.unit_class) - self.weights

    weights: int = 0

    def axis(self, atoms: Atoms) -> Axis:
        """The length of an axis with these atoms as a linear form of kept counts."""
        groups = self.group_of[self.position(atoms)]
        found, counts = np.unique(groups, return_counts=True)
        fixed = int(counts[found < 0].sum())
        parts = []
        for group, count in zip(found.tolist(), counts.tolist(), strict=True):
            if group >= 0:
                size = self.groups[group].size
                if count % size:
                    raise AssertionError(f"an axis holds {count} channels of a group of {size} units")
                parts.append((group, count // size))
        return Axis(fixed, tuple(parts))


def components(count: int, a: Atoms, b: Atoms) -> Atoms:
    """The smallest member of each element's connected component, by hooking and pointer jumping."""
    parent = np.arange(count, dtype=np.int64)
    while len(a):
        roots_a, roots_b = parent[a], parent[b]
        apart = roots_a != roots_b
        if not apart.any():
            break
        a, b = a[apart], b[apart]
        low, high = np.minimum(roots_a, roots_b)[apart], np.maximum(roots_a, roots_b)[apart]
        np.minimum.at(parent, high, low)
        while True:
            jumped = parent[parent]
            if np.array_equal(jumped, parent):
                break
            parent = jumped
    return parent


def positions(discovered: Discover, atoms: Atoms) -> Atoms:
    """Where atoms stand among all: phantoms come after those of weights."""
    return np.where(atoms >= 0, atoms, discovered.atom_count + (-2 - atoms))


def unit_classes(discovered: Discover, extra_edges: Iterable[tuple[Atoms, Atoms]] = ()) -> Atoms:
    """Per atom, the representative of all that depend on one another."""
    total = discovered.atom_count + discovered.phantom_count

    def joined(edges: Iterable[tuple[Atoms, Atoms]]) -> Atoms:
        pairs = list(edges)
        a = np.concatenate([edge[0] for edge in pairs] or [_NONE])
        b = np.concatenate([edge[1] for edge in pairs] or [_NONE])
        return positions(discovered, np.stack([a, b]))

    if discovered.classes is None:  # the same for every call: trials only add to it
        discovered.classes = components(total, *joined(discovered.edges))
    extra = discovered.classes[joined(extra_edges)]
    return components(total, *extra)[discovered.classes] if extra.size else discovered.classes


def resolve(
    discovered: Discover,
    extra_edges: Iterable[tuple[Atoms, Atoms]] = (),
    extra_frozen: Iterable[tuple[Atoms, str]] = (),
) -> Units:
    """Sort atoms into units and groups.

    Args:
        discovered: the first run.
        extra_edges: more ties, e.g. of grids.
        extra_frozen: more frozen atoms, e.g. after failed trials.
    """
    weights, unit_class = discovered.atom_count, unit_classes(discovered, extra_edges)
    reasons: dict[int, str] = {}
    for atoms, reason in [*discovered.frozen, *extra_frozen]:
        for representative in set(unit_class[positions(discovered, atoms)].tolist()):
            reasons.setdefault(representative, reason)

    axis_of = np.repeat(np.arange(len(discovered.axes)), [axis.length for axis in discovered.axes])
    roles = axis_roles(discovered)
    first_use = _first_use(discovered, roles)
    groups, classes = _groups(discovered.axes, unit_class[:weights], axis_of, roles, first_use, reasons)
    lookup = np.full(len(unit_class), -1, dtype=np.int64)
    for position, own in enumerate(classes):
        lookup[own] = position
    group_of = lookup[unit_class]
    return Units(unit_class, group_of, tuple(groups), tuple(classes), reasons, weights)


def axis_roles(discovered: Discover) -> dict[int, str]:
    """Per weight axis (by position): "out" if it produces channels, "in" if it consumes them."""
    starts = np.array([axis.start for axis in discovered.axes], dtype=np.int64)
    roles: dict[int, str] = {}
    for contraction in discovered.contractions:
        for dim, role in ((contraction.columns, "in"), (contraction.rows, "out")):
            atoms = contraction.axes.get(dim, [_NONE])[-1]
            if len(atoms) and atoms.min() >= 0:
                for axis in np.unique(np.searchsorted(starts, atoms, side="right") - 1).tolist():
                    roles.setdefault(axis, role)
    return roles


def _first_use(discovered: Discover, roles: Mapping[int, str]) -> dict[int, int]:
    """Per producing axis, when it first ran."""
    starts = np.array([axis.start for axis in discovered.axes], dtype=np.int64)
    order: dict[int, int] = {}
    for when, contraction in enumerate(discovered.contractions):
        atoms = contraction.axes.get(contraction.rows, [_NONE])[-1]
        if len(atoms) and atoms.min() >= 0:
            for axis in np.unique(np.searchsorted(starts, atoms, side="right") - 1).tolist():
                order.setdefault(axis, when)
    return order


def _groups(
    axes: Sequence[WeightAxis],
    unit_class: Atoms,
    axis_of: NDArray[np.intp],
    roles: Mapping[int, str],
    first_use: Mapping[int, int],
    reasons: dict[int, str],
) -> tuple[list[Group], list[Atoms]]:
    """Classes with the same members (weight axes, with how many positions each) form a group."""
    # Only classes with filters and without a reason to stay; the others never become Python objects.
    produces = np.zeros(len(axes) + 1, dtype=bool)
    produces[[axis for axis, role in roles.items() if role == "out"]] = True
    prunable = np.zeros(len(unit_class) + 1, dtype=bool)
    prunable[unit_class[produces[axis_of]]] = True
    prunable[[frozen for frozen in reasons if frozen < len(unit_class)]] = False
    chosen = np.flatnonzero(prunable[unit_class])
    order = chosen[np.lexsort((chosen, axis_of[chosen], unit_class[chosen]))]
    bounds = [0, *(np.flatnonzero(np.diff(unit_class[order])) + 1).tolist(), len(order)] if len(order) else []
    signatures = axis_of[order]
    by_signature: dict[bytes, list[Atoms]] = {}
    for start, end in itertools.pairwise(bounds):
        by_signature.setdefault(signatures[start:end].tobytes(), []).append(order[start:end])

    found = []
    for members in by_signature.values():
        stacked = np.stack(members)  # (units, positions), positions sorted by axis
        own = axis_of[stacked[0]]
        producing = [axis for axis in np.unique(own).tolist() if roles.get(axis) == "out"]
        leader = min(producing, key=lambda axis: (first_use.get(axis, len(first_use)), axis))
        if len(stacked) == 1:
            reasons[int(unit_class[stacked[0, 0]])] = _ONE_UNIT
            continue
        stacked = stacked[np.argsort(stacked[:, np.flatnonzero(own == leader)[0]])]
        found.append((first_use.get(leader, len(first_use)), int(stacked[0].min()), leader, own, stacked))
    groups: list[Group] = []
    classes: list[Atoms] = []
    names: dict[str, int] = {}
    for _, _, leader, own, stacked in sorted(found, key=lambda item: item[:2]):
        name = axes[leader].weight.removesuffix(".weight")
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:  # e.g. a stage whose first channels also serve the stage before
            name = f"{name}#{names[name]}"
        entries = []
        for axis in sorted(np.unique(own).tolist(), key=lambda axis: (axis != leader, axis)):
            index = stacked[:, own == axis] - axes[axis].start
            entries.append(Member(axes[axis].weight, axes[axis].dim, roles.get(axis, "along"), index.astype(np.int64)))
        groups.append(Group(name, len(stacked), tuple(entries)))
        classes.append(unit_class[stacked[:, 0]])
    return groups, classes
