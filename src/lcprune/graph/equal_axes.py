"""Axes of one length: code may take the length of one for that of the other, so that they must be cut alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from lcprune.graph.atoms import Atoms
from lcprune.graph.discover import Fact
from lcprune.graph.resolve import Units

Pair = tuple[Atoms, Atoms, set[int]]  # two axes, and the classes along them


def equal_axes(module: str, facts: Mapping[str, Sequence[Fact]], units: Units) -> dict[tuple[str, str, int], Pair]:
    """Pairs of different axes of one length that were seen while a module ran and that can both be cut.

    Args:
        module: its name.
        facts: what was seen, by module.
        units: what lies along the axes.

    Returns:
        The pairs by the two places inside the module, with a running number: the same in all modules of one class.
    """
    axes: dict[bytes, tuple[str, Fact, set[int]]] = {}
    for place, seen in facts.items():
        if place == module or place.startswith(f"{module}." if module else ""):
            for fact in seen:
                positions = units.position(fact.atoms)
                if (units.group_of[positions] >= 0).all():
                    classes = units.unit_class[positions]
                    axes.setdefault(classes.tobytes(), (place[len(module) :], fact, set(classes.tolist())))
    found: dict[tuple[str, str, int], Pair] = {}
    for (one, a, along_a), (other, b, along_b) in itertools.combinations(axes.values(), 2):
        if a.size == b.size and not along_a & along_b:
            ordinal = sum(key[:2] == (one, other) for key in found)
            found[one, other, ordinal] = (a.atoms, b.atoms, along_a | along_b)
    return found
