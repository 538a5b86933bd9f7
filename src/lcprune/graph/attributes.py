"""Integers that modules keep: which of them may be the length of an axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import nn

from lcprune.graph.discover import Fact
from lcprune.graph.structure import AttributeTie, Structure, TrialError


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
    found = []
    for place, seen in facts.items():
        if place == tie.module or place.startswith(f"{tie.module}." if tie.module else ""):
            for ordinal, fact in enumerate(seen):
                if fact.size == tie.old and np.array_equal(fact.atoms, tie.atoms):
                    found.append((place[len(tie.module) :], ordinal))
    result = []
    for name, module in modules.items():
        if type(module) is not type(modules[tie.module]) or (name, tie.attribute, tie.index) in known:
            continue
        values = {(attribute, index): value for attribute, index, value in _integers(module)}
        value = values.get((tie.attribute, tie.index))
        for inner, ordinal in found:
            own = facts.get(name + inner, [])
            if ordinal < len(own) and own[ordinal].size == value:
                result.append(AttributeTie(name, tie.attribute, tie.index, value, own[ordinal].atoms))
                break
    return result


def _integers(module: nn.Module) -> Iterator[tuple[str, int | None, int]]:
    """Integer attributes of a module, and integers in its lists and tuples."""
    for name, value in vars(module).items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield name, None, value
        elif isinstance(value, (list, tuple)) and 0 < len(value) <= 16:
            for index, entry in enumerate(value):
                if isinstance(entry, int) and not isinstance(entry, bool) and entry > 1:
                    yield name, index, entry
