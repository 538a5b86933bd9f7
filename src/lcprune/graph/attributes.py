"""Lengths that only Python code knows: integers that modules keep, and axes of one length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import nn

from lcprune.graph.atoms import Atoms
from lcprune.graph.discover import Fact
from lcprune.graph.resolve import Units
from lcprune.graph.structure import AttributeTie, Structure, TrialError

AxisPair = tuple[Atoms, Atoms, set[int]]  # two axes, and the classes along them


def candidates(failure: TrialError, structure: Structure, modules: Mapping[str, nn.Module]) -> Iterator[AttributeTie]:
    """Integers kept by modules near a failure that equal the length of an axis that is being cut.

    First the running modules, then those that ran inside the innermost of them (a shortcut that pads, say).
    """
    stack, units = list(dict.fromkeys(reversed(failure.stack))), structure.units
    prefix = f"{stack[0]}." if stack and stack[0] else ""
    inside = [place for place in structure.discovered.facts if place.startswith(prefix) and place not in stack]
    seen = {(tie.module, tie.attribute, tie.index, tie.atoms.tobytes()) for tie in structure.ties}
    involved = units.classes_of(failure.atoms)
    for place in [*stack, *reversed(inside)]:
        owners = stack if place in stack else [place]
        for fact in cut_facts(structure, place):
            if place not in stack and involved and not involved & units.classes_of(fact.atoms):
                continue
            for name in owners:
                for attribute, index, value in _integers(modules[name]):
                    key = (name, attribute, index, fact.atoms.tobytes())
                    if value == fact.size and key not in seen:
                        seen.add(key)
                        yield AttributeTie(name, attribute, index, value, fact.atoms)


def cut_facts(structure: Structure, module: str) -> list[Fact]:
    """The axes that a module saw and that can be cut."""
    units, facts = structure.units, structure.discovered.facts.get(module, [])
    return [fact for fact in facts if (units.group_of[units.position(fact.atoms)] >= 0).any()]


def likewise(
    tie: AttributeTie,
    ties: Sequence[AttributeTie],
    facts: Mapping[str, Sequence[Fact]],
    modules: Mapping[str, nn.Module],
) -> list[AttributeTie]:
    """The same attribute of the other modules of the same class, by the same place among their facts."""
    known = {(other.module, other.attribute, other.index) for other in ties}
    found = [
        (inner, ordinal)
        for inner, seen in _inside(tie.module, facts)
        for ordinal, fact in enumerate(seen)
        if fact.size == tie.old and np.array_equal(fact.atoms, tie.atoms)
    ]
    result = []
    for name, module in modules.items():
        if type(module) is not type(modules[tie.module]) or (name, tie.attribute, tie.index) in known:
            continue
        value = {(attribute, index): value for attribute, index, value in _integers(module)}.get(
            (tie.attribute, tie.index)
        )
        for inner, ordinal in found:
            own = facts.get(name + inner, [])
            if ordinal < len(own) and own[ordinal].size == value:
                result.append(AttributeTie(name, tie.attribute, tie.index, value, own[ordinal].atoms))
                break
    return result


def _inside(module: str, facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, Sequence[Fact]]]:
    """What was seen while a module ran, with the place as the end of a name, which is "" for the module itself."""
    for place, seen in facts.items():
        if place == module or place.startswith(f"{module}." if module else ""):
            yield place[len(module) :], seen


def _integers(module: nn.Module) -> Iterator[tuple[str, int | None, int]]:
    """Integer attributes of a module, and integers in its lists and tuples."""
    for name, value in vars(module).items():
        short = isinstance(value, (list, tuple)) and len(value) <= 16
        for index, entry in enumerate(value) if short else [(None, value)]:
            if isinstance(entry, int) and not isinstance(entry, bool) and entry > 1:
                yield name, index, entry


def equal_axes(module: str, facts: Mapping[str, Sequence[Fact]], units: Units) -> dict[tuple[str, str, int], AxisPair]:
    """Pairs of different axes of one length that were seen while a module ran and that can both be cut.

    Code may take the length of one for that of the other, so that they must be cut alike. The pairs are named by the
    two places inside the module and a running number: the same in all modules of one class.
    """
    axes: dict[bytes, tuple[str, Fact, set[int]]] = {}
    for inner, seen in _inside(module, facts):
        for fact in seen:
            positions = units.position(fact.atoms)
            if (units.group_of[positions] >= 0).all():
                classes = units.unit_class[positions]
                axes.setdefault(classes.tobytes(), (inner, fact, set(classes.tolist())))
    found: dict[tuple[str, str, int], AxisPair] = {}
    for (one, a, along_a), (other, b, along_b) in itertools.combinations(axes.values(), 2):
        if a.size == b.size and not along_a & along_b:
            ordinal = sum(key[:2] == (one, other) for key in found)
            found[one, other, ordinal] = (a.atoms, b.atoms, along_a | along_b)
    return found
