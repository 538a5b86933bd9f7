"""From edges between atoms to units and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lcprune.cost import Axis
from lcprune.graph.atoms import Atoms
from lcprune.graph.channel_graph import Group, Member
from lcprune.graph.discover import Discover

_NONE: Atoms = np.empty(0, np.int64)
_ONE_UNIT = "all its channels depend on one another, so that none can go alone"


def positions(atoms: Atoms, weights: int) -> Atoms:
    """Where atoms stand among all: phantoms come after those of weights."""
    return np.where(atoms >= 0, atoms, weights - 2 - atoms)


@dataclass(frozen=True, eq=False)
class Units:
    """Atoms sorted into units."""

    weights: int  # atoms of weights: they come first, then phantoms
    unit_class: Atoms  # per atom, the representative of its class
    group_of: Atoms  # per atom, its group's position, -1 if frozen
    groups: tuple[Group, ...]  # what can be pruned
    classes: tuple[Atoms, ...]  # per group, the class of each of its units
    reasons: Mapping[int, str]  # class -> why it is frozen

    def position(self, atoms: Atoms) -> Atoms:
        """Where atoms (phantoms included) stand in the arrays above."""
        return positions(atoms, self.weights)

    def classes_of(self, atoms: Atoms) -> set[int]:
        """The classes that atoms belong to."""
        return set(self.unit_class[self.position(atoms[atoms != -1])].tolist())

    def groups_of(self, atoms: Atoms) -> set[int]:
        """The groups that atoms belong to; none for what is frozen."""
        return set(self.group_of[self.position(atoms[atoms != -1])].tolist()) - {-1}

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


def unit_classes(discovered: Discover, extra_edges: Iterable[tuple[Atoms, Atoms]]) -> Atoms:
    """Per atom, the representative of all that depend on one another."""
    total = discovered.atom_count + discovered.phantom_count

    def joined(edges: Iterable[tuple[Atoms, Atoms]]) -> Atoms:
        pairs = list(edges)
        a = np.concatenate([edge[0] for edge in pairs] or [_NONE])
        b = np.concatenate([edge[1] for edge in pairs] or [_NONE])
        return positions(np.stack([a, b]), discovered.atom_count)

    if discovered.classes is None:  # the same for every call: trials only add to it
        discovered.classes = components(total, *joined(discovered.edges))
    extra = discovered.classes[joined(extra_edges)]
    return components(total, *extra)[discovered.classes] if extra.size else discovered.classes


def resolve(
    discovered: Discover, extra_edges: Iterable[tuple[Atoms, Atoms]], extra_frozen: Iterable[tuple[Atoms, str]]
) -> Units:
    """Sort atoms into units and groups, with more ties (of grids, say) and more frozen atoms (after failed trials)."""
    weights, unit_class = discovered.atom_count, unit_classes(discovered, extra_edges)
    reasons: dict[int, str] = {}
    for atoms, reason in [*discovered.frozen, *extra_frozen]:
        for representative in np.unique(unit_class[positions(atoms, weights)]).tolist():
            reasons.setdefault(representative, reason)
    groups, classes = _groups(discovered, unit_class[:weights], reasons)
    lookup = np.full(len(unit_class), -1, dtype=np.int64)
    for position, own in enumerate(classes):
        lookup[own] = position
    return Units(weights, unit_class, lookup[unit_class], tuple(groups), tuple(classes), reasons)


def axis_roles(discovered: Discover) -> dict[int, str]:
    """Per weight axis (by position), as they are used: "out" if it produces channels, "in" if it consumes them."""
    roles: dict[int, str] = {}
    for contraction in discovered.contractions:
        for dim, role in ((contraction.columns, "in"), (contraction.rows, "out")):
            atoms = contraction.axes.get(dim, [_NONE])[-1]
            if len(atoms) and atoms.min() >= 0:
                for axis in np.unique(discovered.axis_of[atoms]).tolist():
                    roles.setdefault(axis, role)
    return roles


def _groups(discovered: Discover, unit_class: Atoms, reasons: dict[int, str]) -> tuple[list[Group], list[Atoms]]:
    """Classes with the same members (weight axes, with how many positions each) form a group."""
    axes, axis_of, roles = discovered.axes, discovered.axis_of, axis_roles(discovered)
    first_use = {axis: when for when, axis in enumerate(roles)}
    # Only classes with filters and without a reason to stay; the others never become Python objects.
    produces = np.zeros(len(axes), dtype=bool)
    produces[[axis for axis, role in roles.items() if role == "out"]] = True
    prunable = np.zeros(len(unit_class), dtype=bool)
    prunable[unit_class[produces[axis_of]]] = True
    prunable[[frozen for frozen in reasons if frozen < len(unit_class)]] = False
    chosen = np.flatnonzero(prunable[unit_class])
    order = chosen[np.lexsort((chosen, axis_of[chosen], unit_class[chosen]))]
    by_signature: dict[bytes, list[Atoms]] = {}
    for members in np.split(order, np.flatnonzero(np.diff(unit_class[order])) + 1) if len(order) else ():
        by_signature.setdefault(axis_of[members].tobytes(), []).append(members)

    found = []
    for unsorted in by_signature.values():
        stacked = np.stack(unsorted)  # (units, positions), positions sorted by axis
        own = axis_of[stacked[0]]
        leader = min((axis for axis in own.tolist() if roles.get(axis) == "out"), key=first_use.__getitem__)
        if len(stacked) == 1:
            reasons[int(unit_class[stacked[0, 0]])] = _ONE_UNIT
            continue
        stacked = stacked[np.argsort(stacked[:, np.flatnonzero(own == leader)[0]])]
        found.append((first_use[leader], int(stacked[0].min()), leader, own, stacked))
    groups: list[Group] = []
    classes: list[Atoms] = []
    names: Counter[str] = Counter()
    for _, _, leader, own, stacked in sorted(found, key=lambda item: item[:2]):
        name = axes[leader].weight.removesuffix(".weight")
        names[name] += 1
        if names[name] > 1:  # e.g. a stage whose first channels also serve the stage before
            name = f"{name}#{names[name]}"
        entries = []
        for axis in sorted(np.unique(own).tolist(), key=lambda axis: (axis != leader, axis)):
            index = stacked[:, own == axis] - axes[axis].start
            entries.append(Member(axes[axis].weight, axes[axis].dim, roles.get(axis, "along"), index))
        groups.append(Group(name, len(stacked), tuple(entries)))
        classes.append(unit_class[stacked[:, 0]])
    return groups, classes
