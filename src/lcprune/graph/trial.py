"""Trying cuts on a network without data: what only Python code knows shows when it runs.

A size may be a constant in `forward`, an attribute of a module, or computed from another size, and the graph of
operators cannot tell. So every group is cut at random and the cut network is run. What fails is mended, in this
order: an integer attribute is made to follow the cut; axes of one length are cut alike; a grid is cut along
another side; the channels are frozen.
In the end attributes that need not follow are released, and those that the code also computes with freeze their
channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from lcprune.graph.atoms import Atoms
from lcprune.graph.attributes import candidates, cut_facts, equal_axes, likewise
from lcprune.graph.channel_graph import Group
from lcprune.graph.cuts import CUTS, few_of_some
from lcprune.graph.reads import reads
from lcprune.graph.recall import Recall
from lcprune.graph.resolve import positions, resolve, unit_classes
from lcprune.graph.structure import AttributeTie, Structure, TrialError
from lcprune.select import Kept
from lcprune.surgery import AttributeChange

_TRIALS = 400
_CANDIDATES = 24
_PAIRS = 6
_MANY = 8  # small groups: more are tried together first
_SMALL = 10  # units of which a tenth, the least that limits keep, is one

_Where = tuple[type[nn.Module] | None, str]  # a kind of module, and a line of code


class Trials:
    """Mends a structure, its `units` and `ties`, until random cuts of it run and compute what they should.

    Args:
        structure: what the first run found.
        frozen: atoms that must stay for other reasons.
    """

    def __init__(self, structure: Structure, frozen: Sequence[tuple[Atoms, str]]) -> None:
        self.structure, self.frozen = structure, list(frozen)
        self.discovered = structure.discovered
        self.modules = dict(structure.skeleton.named_modules())
        self.budget = _TRIALS
        self.kept: Kept = []
        self.hopeless: set[_Where] = set()
        self.all_fail: set[tuple[_Where, int]] = set()  # where each of so many groups fails alone
        # Grids of modules of one class, at the same place in them, are cut alike.
        self._keys: list[tuple[type[nn.Module], int]] = []
        ordinals: Counter[str] = Counter()
        for grid in self.discovered.grids:
            self._keys.append((type(self.modules[grid.module]), ordinals[grid.module]))
            ordinals[grid.module] += 1
        self.options = dict.fromkeys(self._keys, 0)
        self.alike: list[tuple[Atoms, Atoms]] = []  # axes that are cut alike, position by position
        self._certain = set(map(_place, structure.ties))
        lopsided = (partial(self._lopsided, whole=whole) for whole in (0, 1))
        self._cuts: tuple[Callable[[Sequence[Group]], Kept | None], ...] = (*CUTS[:-1], *lopsided, CUTS[-1])
        self._resolve()

    def run(self) -> None:
        """Try and mend until cuts succeed, with no more numbers that follow them than needed."""
        self.structure.recall = Recall()
        self._confirm()
        self._release()
        while self._freeze_computed():
            self._confirm()
        if self._freeze_single():
            self._confirm()
        self.structure.recall = None

    def _confirm(self) -> None:
        """Try and mend until all kinds of cuts succeed, one after another."""
        confirmed = 0
        while confirmed < len(self._cuts) and self.structure.units.groups:
            kept = self._cuts[confirmed](self.structure.units.groups)
            failure = self._try(kept)
            if kept is None or failure is None:
                confirmed += 1
                continue
            confirmed = 0
            if self.budget <= 0:
                groups = range(len(self.structure.units.groups))
                self._freeze_groups(dict.fromkeys(groups, f"trial cuts kept failing: {failure}"))
                return
            self.kept = kept
            self._mend(failure)

    def _lopsided(self, groups: Sequence[Group], whole: int) -> Kept | None:
        """Few units of every other group along an axis that is taken by position: a share of it may cut through one."""
        axes = {part.whole.tobytes(): part.whole for part in self.discovered.parts.values()}
        return few_of_some(groups, [sorted(self.structure.units.groups_of(atoms)) for atoms in axes.values()], whole)

    def _try(self, kept: Kept | None) -> TrialError | None:
        """Make a cut, if there is one to make, and run it; the failure, if there is one."""
        if kept is None:
            return None
        self.budget -= 1
        try:
            order = self.structure.order(kept)
        except TrialError as failure:
            return failure
        if any((np.diff(atoms) < 0).any() for atoms in order.values()):
            self.structure.natural = False
        return None

    def _further(self, failure: TrialError, kept: Kept | None) -> bool:
        """Whether a cut now runs further than where one failed before."""
        after = self._try(kept)
        return after is None or after.operations > failure.operations

    def _mend(self, failure: TrialError) -> None:
        # What could not be mended in one module is not tried again in every other module of its kind.
        where = (type(self.modules[failure.stack[-1]]) if failure.stack else None, failure.line)
        if where not in self.hopeless:
            if self._follow_attribute(failure) or self._cut_alike(failure) or self._other_side(failure):
                return
            self.hopeless.add(where)
        self._freeze(failure, where)

    def _follow_attribute(self, failure: TrialError) -> bool:
        structure, before = self.structure, self.structure.ties
        found = list(candidates(failure, structure, self.modules))
        batches = [[tie] for tie in found]
        if len(found) > 1:
            first: dict[tuple[str, str, int | None], AttributeTie] = {}
            for tie in found:
                first.setdefault(_place(tie), tie)
            batches.append(list(first.values()))
        # Numbers that were not read before the failure change nothing, nor do those that have been tried.
        with reads({tie.module: self.modules[tie.module] for tie in found}) as read:
            self._try(self.kept if found else None)
        tried = {self._changes(read)}
        for batch in batches[:_CANDIDATES]:
            replaced = set(map(_place, batch))
            structure.ties = [tie for tie in before if _place(tie) not in replaced] + batch
            changes = self._changes(read)
            # The same cut as before, so that getting further is not luck.
            if changes not in tried and self._further(failure, self.kept):
                for tie in batch:
                    structure.ties += likewise(tie, structure.ties, self.discovered.facts, self.modules)
                return True
            tried.add(changes)
        structure.ties = before
        return False

    def _changes(self, read: set[tuple[str, str]]) -> frozenset[AttributeChange]:
        """What the last cut changes of numbers that are read."""
        changes = self.structure.changes(self.structure.keeps(self.kept))
        return frozenset(change for change in changes if (change.module, change.attribute) in read)

    def _other_side(self, failure: TrialError) -> bool:
        """Cut a grid that is involved along another of its sides."""
        units = self.structure.units
        involved = units.classes_of(failure.atoms)
        for key, grid in zip(self._keys, self.discovered.grids, strict=True):
            if not involved & units.classes_of(grid.atoms):
                continue
            before = self.options[key]
            for option in range(before + 1, grid.options):
                self.options[key] = option
                self._resolve()
                if self._further(failure, CUTS[0](self.structure.units.groups)):
                    return True
            self.options[key], self.structure.units = before, units
        return False

    def _cut_alike(self, failure: TrialError) -> bool:
        """Cut axes alike: code takes one's length for another's, as attention does with tokens and heads."""
        before, involved = self.alike, self.structure.units.classes_of(failure.atoms)
        units, facts = self.structure.units, self.discovered.facts
        for owner in list(dict.fromkeys(reversed(failure.stack)))[:2] if failure.sizes else []:
            kind = type(self.modules[owner])
            others = [name for name, module in self.modules.items() if type(module) is kind and name != owner]
            likes = [equal_axes(name, facts, units) for name in others]
            own = sorted(equal_axes(owner, facts, units).items(), key=lambda item: not involved & item[1][2])
            batches = [[place] for place, _ in own[:_PAIRS]]
            lengths: dict[int, list[Any]] = {}  # one length of three axes or more
            for place, pair in own[:_PAIRS]:
                if involved & pair[2]:
                    lengths.setdefault(len(pair[0]), []).append(place)
            for batch in [*batches, *(same for same in lengths.values() if len(same) > 1)]:
                pairs = [like[place][:2] for place in batch for like in [dict(own), *likes] if place in like]
                self.alike = [*before, *pairs]
                self._resolve()
                if all(self._further(failure, cut(self.structure.units.groups)) for cut in (CUTS[0], CUTS[-1])):
                    return True
                self.alike, self.structure.units = before, units
        return False

    def _freeze(self, failure: TrialError, where: _Where) -> None:
        """Freeze the groups that fail alone; if none does, all that are involved."""
        units = self.structure.units
        groups = units.groups_of(failure.atoms)
        for place in dict.fromkeys(reversed(failure.stack)):
            if not groups:
                groups = {group for fact in cut_facts(self.structure, place) for group in units.groups_of(fact.atoms)}
        involved = sorted(groups) or list(range(len(units.groups)))
        if len(involved) > 1 and (where, len(involved)) not in self.all_fail:
            whole = [np.arange(group.size) for group in units.groups]
            alone = [g for g in involved[:8] if self._try([*whole[:g], self.kept[g], *whole[g + 1 :]]) is not None]
            if alone == involved:
                self.all_fail.add((where, len(involved)))
            involved = alone or involved
        module = failure.stack[-1] if failure.stack else ""
        self._freeze_groups(dict.fromkeys(involved, f"{module}: {failure}" if module else str(failure)))

    def _freeze_groups(self, reasons: Mapping[int, str]) -> None:
        units = self.structure.units
        for group, reason in reasons.items():
            self.frozen.append((np.flatnonzero(units.group_of[: units.weights] == group), reason))
        self._resolve()

    def _release(self) -> None:
        """Let go of attributes that merely equal a width: the cut network runs as well when they stay."""
        structure, doubtful = self.structure, self._doubtful()
        with reads({tie.module: self.modules[tie.module] for tie in doubtful}) as read:
            self._try(CUTS[-1](structure.units.groups) if doubtful else None)
        unread = [tie for tie in doubtful if (tie.module, tie.attribute) not in read]
        structure.ties = [tie for tie in structure.ties if tie not in unread]
        kinds: dict[Any, list[AttributeTie]] = {}
        for tie in doubtful:
            if tie not in unread:
                kinds.setdefault((type(self.modules[tie.module]), tie.attribute, tie.index), []).append(tie)
        for own in kinds.values():
            before, structure.ties = structure.ties, [tie for tie in structure.ties if tie not in own]
            if any(self._try(cut(structure.units.groups)) is not None for cut in self._cuts):
                structure.ties = before

    def _doubtful(self) -> list[AttributeTie]:
        return [tie for tie in self.structure.ties if _place(tie) not in self._certain]

    def _freeze_computed(self) -> bool:
        """Freeze channels whose number follows a cut in an attribute that the code also computes with."""
        structure, found, doubtful = self.structure, False, self._doubtful()
        kept = CUTS[-1](structure.units.groups)  # it runs: it was tried last
        used = structure.computed_with(kept) if kept and doubtful else set()
        for tie in doubtful:
            groups = structure.units.groups_of(tie.atoms)
            if (tie.module, tie.attribute) in used and groups:
                name = f"{tie.module}.{tie.attribute}".removeprefix(".")
                reason = f"{name} is their number, and the code also computes with it"
                self._freeze_groups(dict.fromkeys(sorted(groups), reason))
                found = True
        return found

    def _freeze_single(self) -> bool:
        """Freeze small groups of which one unit cannot stay alone; of larger ones such plans are tried when made."""
        structure, groups = self.structure, self.structure.units.groups
        if structure.fault([np.arange(1) for _ in groups]) is None:
            return False
        structure.single = False
        faults = dict(self._faults([place for place, group in enumerate(groups) if group.size <= _SMALL]))
        if faults:
            self._freeze_groups({place: str(fault) for place, fault in faults.items()})
        return bool(faults)

    def _faults(self, places: Sequence[int]) -> Iterator[tuple[int, TrialError]]:
        """Which of these groups cannot be cut to one unit, and why: one by one, or many at once, since most can."""
        groups = self.structure.units.groups
        parts = [[place] for place in places]
        if len(places) > _MANY:
            parts = [[*places[: len(places) // 2]], [*places[len(places) // 2 :]]]
        for part in parts:
            fault = self.structure.fault([np.arange(1 if g in part else own.size) for g, own in enumerate(groups)])
            if fault is not None and len(part) == 1:
                yield part[0], fault
            elif fault is not None:
                yield from self._faults(part)

    def _resolve(self) -> None:
        """Sort atoms into units, with ties of grids that are not rectangular yet."""
        classes = unit_classes(self.discovered, self.alike)
        edges = list(self.alike)
        for key, grid in zip(self._keys, self.discovered.grids, strict=True):
            if not grid.rectangular(classes[positions(grid.atoms, self.discovered.atom_count)]):
                edges.append(grid.edges(min(self.options[key], grid.options - 1)))
        self.structure.units = resolve(self.discovered, edges, self.frozen)


def _place(tie: AttributeTie) -> tuple[str, str, int | None]:
    return tie.module, tie.attribute, tie.index
