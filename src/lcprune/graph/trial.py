"""Trying cuts on a network without data: what only Python code knows shows when it runs.

A size may be a constant in `forward`, an attribute of a module, or computed from another size, and the graph of
operators cannot tell. So every group is cut at random and the cut network is run. What fails is mended, in this
order: an integer attribute is made to follow the cut; axes of one length are cut alike; a grid is cut along
another side; the channels are frozen.
In the end attributes that need not follow are released, and those that the code also computes with freeze their
channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.graph.attributes import candidates, cut_facts, equal_axes, likewise, reads
from lcprune.graph.cuts import CUTS
from lcprune.graph.discover import Atoms, Discover
from lcprune.graph.recall import Recall
from lcprune.graph.resolve import Units, positions, resolve, unit_classes
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
    """Mends a structure until random cuts of it run and compute what they should.

    Args:
        structure: what the first run found; `units` and `ties` are brought up to date.
        frozen: atoms that must stay for other reasons.
    """

    def __init__(self, structure: Structure, frozen: Sequence[tuple[Atoms, str]] = ()) -> None:
        self.structure = structure
        self.discovered: Discover = structure.discovered
        self.frozen = list(frozen)
        self.modules = dict(structure.skeleton.named_modules())
        self.budget = _TRIALS
        self.kept: Kept = []
        self.hopeless: set[_Where] = set()
        self.all_fail: set[tuple[_Where, int]] = set()  # where each of so many groups fails alone
        self._keys = self._grid_keys()
        self.options = dict.fromkeys(self._keys, 0)
        self.alike: list[tuple[Atoms, Atoms]] = []  # axes that are cut alike, position by position
        self._certain = set(map(_place, structure.ties))
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
        while confirmed < len(CUTS) and self.structure.units.groups:
            kept = CUTS[confirmed](self.structure.units.groups)
            failure = self._try(kept, self.structure.ties)
            if failure is None:
                confirmed += 1
                continue
            confirmed = 0
            if self.budget <= 0:
                self._freeze_groups(range(len(self.structure.units.groups)), f"trial cuts kept failing: {failure}")
                return
            assert kept is not None
            self.kept = kept
            self._mend(failure)

    # -- trying -------------------------------------------------------------------------------------------------

    def _try(self, kept: Kept | None, ties: Sequence[AttributeTie]) -> TrialError | None:
        """Make a cut, if there is one to make, and run it; the failure, if there is one."""
        if kept is None:
            return None
        self.budget -= 1
        try:
            order = self.structure.order(kept, ties)
        except TrialError as failure:
            return failure
        natural = self.structure.natural_order(self.structure.keeps(kept))
        if any(not np.array_equal(order[key], natural[key]) for key in order):
            self.structure.natural = False
        return None

    def _only(self, group: int) -> Kept:
        """The last cut, of one group alone."""
        groups = self.structure.units.groups
        return [own if g == group else np.arange(groups[g].size) for g, own in enumerate(self.kept)]

    def _further(self, failure: TrialError, after: TrialError | None) -> bool:
        return after is None or after.operations > failure.operations

    # -- mending ------------------------------------------------------------------------------------------------

    def _mend(self, failure: TrialError) -> None:
        # What could not be mended in one module is not tried again in every other module of its kind.
        where = (type(self.modules[failure.stack[-1]]) if failure.stack else None, failure.line)
        if where not in self.hopeless:
            if self._follow_attribute(failure) or self._cut_alike(failure) or self._other_side(failure):
                return
            self.hopeless.add(where)
        self._freeze(failure, where)

    def _follow_attribute(self, failure: TrialError) -> bool:
        found = list(candidates(failure, self.structure, self.modules))
        batches: list[list[AttributeTie]] = [[tie] for tie in found]
        if len(found) > 1:
            first: dict[tuple[str, str, int | None], AttributeTie] = {}
            for tie in found:
                first.setdefault(_place(tie), tie)
            batches.append(list(first.values()))
        # Numbers that were not read before the failure change nothing, nor do those that have been tried.
        with reads({tie.module: self.modules[tie.module] for tie in found}) as read:
            self._try(self.kept if found else None, self.structure.ties)
        tried = {self._changes(self.structure.ties, read)}
        for batch in batches[:_CANDIDATES]:
            replaced = set(map(_place, batch))
            ties = [tie for tie in self.structure.ties if _place(tie) not in replaced] + batch
            changes = self._changes(ties, read)
            if changes in tried:
                continue
            tried.add(changes)
            # The same cut as before, so that getting further is not luck.
            if self._further(failure, self._try(self.kept, ties)):
                for tie in batch:
                    ties += likewise(tie, ties, self.discovered.facts, self.modules)
                self.structure.ties = ties
                return True
        return False

    def _changes(self, ties: Sequence[AttributeTie], read: set[tuple[str, str]]) -> frozenset[AttributeChange]:
        """What this cut changes of numbers that are read."""
        changes = self.structure.changes(self.structure.keeps(self.kept), ties)
        return frozenset(change for change in changes if (change.module, change.attribute) in read)

    def _other_side(self, failure: TrialError) -> bool:
        """Cut a grid that is involved along another of its sides."""
        involved = self.structure.units.classes_of(failure.atoms)
        units = self.structure.units
        for position, grid in enumerate(self.discovered.grids):
            key = self._keys[position]
            if not involved & set(units.unit_class[units.position(grid.atoms)].ravel().tolist()):
                continue
            before = self.options[key]
            for option in range(before + 1, grid.options):
                self.options[key] = option
                self._resolve()
                if self._further(failure, self._try(CUTS[0](self.structure.units.groups), self.structure.ties)):
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
                cuts = [cut(self.structure.units.groups) for cut in (CUTS[0], CUTS[-1])]
                if all(self._further(failure, self._try(kept, self.structure.ties)) for kept in cuts):
                    return True
                self.alike, self.structure.units = before, units
        return False

    def _freeze(self, failure: TrialError, where: _Where) -> None:
        """Freeze the groups that fail alone; if none does, all that are involved."""
        units = self.structure.units
        positions = units.position(failure.atoms[failure.atoms != -1])
        groups = sorted(set(units.group_of[positions].tolist()) - {-1})
        if not groups:
            for place in dict.fromkeys(reversed(failure.stack)):
                facts = cut_facts(self.structure, place)
                if facts:
                    groups = sorted(
                        {g for f in facts for g in units.group_of[units.position(f.atoms)].tolist() if g >= 0}
                    )
                    break
        groups = groups or list(range(len(units.groups)))
        if len(groups) > 1 and (where, len(groups)) not in self.all_fail:
            alone = [group for group in groups[:8] if self._try(self._only(group), self.structure.ties) is not None]
            if alone == groups:
                self.all_fail.add((where, len(groups)))
            groups = alone or groups
        module = failure.stack[-1] if failure.stack else ""
        self._freeze_groups(groups, f"{module}: {failure}" if module else str(failure))

    def _freeze_groups(self, groups: Sequence[int] | range, reason: str) -> None:
        units = self.structure.units
        for group in groups:
            atoms = np.flatnonzero(units.group_of[: units.weights] == group)
            self.frozen.append((atoms, reason))
        self._resolve()

    # -- numbers that follow ------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Let go of attributes that merely equal a width: the cut network runs as well when they stay."""
        structure, doubtful = self.structure, self._doubtful()
        with reads({tie.module: self.modules[tie.module] for tie in doubtful}) as read:
            self._try(CUTS[-1](structure.units.groups) if doubtful else None, structure.ties)
        unread = [tie for tie in doubtful if (tie.module, tie.attribute) not in read]
        structure.ties = [tie for tie in structure.ties if tie not in unread]
        kinds: dict[Any, list[AttributeTie]] = {}
        for tie in doubtful:
            if tie not in unread:
                kinds.setdefault((type(self.modules[tie.module]), tie.attribute, tie.index), []).append(tie)
        for own in kinds.values():
            rest = [tie for tie in structure.ties if tie not in own]
            if all(self._try(cut(structure.units.groups), rest) is None for cut in CUTS):
                structure.ties = rest

    def _doubtful(self) -> list[AttributeTie]:
        return [tie for tie in self.structure.ties if _place(tie) not in self._certain]

    def _freeze_computed(self) -> bool:
        """Freeze channels whose number follows a cut in an attribute that the code also computes with."""
        units, found = self.structure.units, False
        doubtful = self._doubtful()
        kept = CUTS[-1](units.groups)  # it runs: it was tried last
        used = self.structure.computed_with(kept) if kept and doubtful else set()
        for tie in doubtful:
            groups = set(units.group_of[units.position(tie.atoms)].tolist()) - {-1}
            if (tie.module, tie.attribute) in used and groups:
                name = f"{tie.module}.{tie.attribute}".removeprefix(".")
                self._freeze_groups(sorted(groups), f"{name} is their number, and the code also computes with it")
                units, found = self.structure.units, True
        return found

    def _freeze_single(self) -> bool:
        """Freeze small groups of which one unit cannot stay alone; of larger ones such plans are tried when made."""
        structure, found = self.structure, False
        groups = structure.units.groups
        if structure.fault([np.arange(1) for _ in groups]) is None:
            return False
        structure.single = False
        for place, fault in self._faults([place for place, group in enumerate(groups) if group.size <= _SMALL]):
            self.frozen.append(
                (np.flatnonzero(structure.units.group_of[: structure.units.weights] == place), str(fault))
            )
            found = True
        if found:
            self._resolve()
        return found

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

    # -- bookkeeping --------------------------------------------------------------------------------------------

    def _grid_keys(self) -> list[tuple[type[nn.Module], int]]:
        """Grids of modules of one class, at the same place in them, are cut alike."""
        counts: dict[str, int] = {}
        keys = []
        for grid in self.discovered.grids:
            ordinal = counts.get(grid.module, 0)
            counts[grid.module] = ordinal + 1
            keys.append((type(self.modules[grid.module]), ordinal))
        return keys

    def _resolve(self) -> None:
        self.structure.units = self._with_grids()

    def _with_grids(self) -> Units:
        """Tie grids that are not rectangular yet; ties of one can settle another, so in the order of the run."""
        classes = unit_classes(self.discovered, self.alike)
        edges: list[tuple[Atoms, Atoms]] = list(self.alike)
        for position, grid in enumerate(self.discovered.grids):
            if not _rectangular(classes[positions(self.discovered, grid.atoms)], grid.sides):
                edges.append(grid.edges(min(self.options[self._keys[position]], grid.options - 1)))
        return resolve(self.discovered, edges, self.frozen)


def _place(tie: AttributeTie) -> tuple[str, str, int | None]:
    return tie.module, tie.attribute, tie.index


def _rectangular(classes: NDArray[np.int64], sides: int) -> bool:
    """Whether the units of a grid already run along whole lines of it, so that any cut leaves a grid."""
    if sides == 1:
        return bool((classes == classes[:1]).all())
    for side in range(sides):
        first = tuple(slice(None) if other == side else slice(0, 1) for other in range(sides))
        if bool((classes == classes[first]).all()):
            return True
    return False
