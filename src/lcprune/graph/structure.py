"""Everything that a trace knows, and how a selection becomes cuts."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.batches import Inputs
from lcprune.graph.alone import Alone
from lcprune.graph.arithmetic import Arithmetic, Attribute
from lcprune.graph.discover import Atoms, Discover, WeightAxis
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.outputs import Leaf, signature
from lcprune.graph.pairs import Pairs
from lcprune.graph.recall import Recall
from lcprune.graph.replay import BRANCH, Mismatch, Order, Replay, involved, on_shapes
from lcprune.graph.resolve import Units
from lcprune.graph.site import LIBRARIES
from lcprune.graph.skeleton import set_mode
from lcprune.surgery import AttributeChange, cut_in_place

_PASSES = 4  # one to see the order, one to confirm it, and room for an order that depends on another


@dataclass(frozen=True, eq=False)
class AttributeTie:
    """An integer that a module keeps and that is the length of an axis.

    Attributes:
        module: the module's name.
        attribute: the attribute's name.
        index: position inside a list or tuple, or None.
        old: its value in the uncut network.
        atoms: what lies along the axis.
    """

    module: str
    attribute: str
    index: int | None
    old: int
    atoms: Atoms


class TrialError(Exception):
    """A cut network does not run, or does not compute what it should.

    Args:
        message: what went wrong.
        operations: how many operators ran before.
        stack: the modules that were running, outermost first.
        atoms: the atoms that were involved.
        line: the line of the network's code that was running, if it is known.
        sizes: an operator could not run, so lengths do not fit; otherwise it ran on channels that it must not see.
    """

    def __init__(
        self, message: str, operations: int, stack: Sequence[str], atoms: Atoms, line: str = "", sizes: bool = False
    ) -> None:
        super().__init__(f"{message} at {line}" if line else message)
        self.operations, self.stack, self.atoms, self.line = operations, tuple(stack), atoms, line
        self.sizes = sizes


@dataclass(eq=False)
class Structure:
    """A traced network, ready to be cut.

    Attributes:
        skeleton: the network without data.
        inputs: example inputs for it.
        outputs: what its outputs look like, by mode (False for evaluation, True for training). Training mode is only
            there if it runs layers that evaluation mode does not.
        discovered: the first run.
        pairs: which atoms met.
        units: atoms sorted into units; set and replaced while trials go on.
        ties: integers that follow a cut.
        natural: every weight keeps the order of its positions, whatever is cut.
        recall: what operators gave, while trials go on.
        single: the network runs with one unit of each group.
    """

    skeleton: nn.Module
    inputs: Inputs
    outputs: dict[bool, list[tuple[str, Any]]]
    discovered: Discover
    pairs: Pairs
    units: Units = field(init=False)
    ties: list[AttributeTie] = field(default_factory=list)
    natural: bool = True
    recall: Recall | None = field(default=None, repr=False)
    single: bool = True

    @property
    def axes(self) -> list[WeightAxis]:
        """All dimensions of all weights."""
        return self.discovered.axes

    def keeps(self, kept: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Per atom (phantoms last), whether it stays.

        Args:
            kept: per group, the units that stay.
        """
        gone = np.zeros(len(self.units.unit_class), dtype=bool)
        for classes, own in zip(self.units.classes, kept, strict=True):
            stays = np.zeros(len(classes), dtype=bool)
            stays[own] = True
            gone[classes[~stays]] = True
        return ~gone[self.units.unit_class]

    def natural_order(self, keeps: NDArray[np.bool_]) -> Order:
        """Kept atoms of every weight axis, in the order of the uncut network."""
        order: Order = {}
        for axis in self.axes:
            stays = keeps[axis.start : axis.start + axis.length]
            order[axis.weight, axis.dim] = axis.start + np.flatnonzero(stays)
        return order

    def changes(self, keeps: NDArray[np.bool_], ties: Sequence[AttributeTie] | None = None) -> list[AttributeChange]:
        """The integers that follow a cut."""
        result = []
        for tie in self.ties if ties is None else ties:
            new = tie.old - int((~keeps[self.units.position(tie.atoms)]).sum())
            if new != tie.old:
                result.append(AttributeChange(tie.module, tie.attribute, tie.index, tie.old, new))
        return result

    def cuts(self, order: Order) -> dict[str, dict[int, NDArray[np.int64]]]:
        """Weight -> dimension -> kept positions, for every dimension that is not left as it is."""
        result: dict[str, dict[int, NDArray[np.int64]]] = {}
        for axis in self.axes:
            index = order[axis.weight, axis.dim] - axis.start
            if len(index) != axis.length or not np.array_equal(index, np.arange(axis.length)):
                result.setdefault(axis.weight, {})[axis.dim] = index
        return result

    def order(self, kept: Sequence[NDArray[np.int64]], ties: Sequence[AttributeTie] | None = None) -> Order:
        """The order in which every weight must hold its kept positions, found by running the cut network.

        An axis of one channel cannot be told from an axis that is broadcast, so where one channel is left the labels
        are followed with two; of the network with one it is checked that it runs and what it takes by position.

        Args:
            kept: per group, the units that stay.
            ties: integers that follow the cut; those of the structure if None.

        Raises:
            TrialError: if there is none, or the cut network does not run.
        """
        groups, last = self.units.groups, None
        single = {g for g, own in enumerate(kept) if len(own) == 1 and groups[g].size > 2}
        lone = self._lone(self.keeps(kept))
        for widened in (lone, *(lone | {group} for group in sorted(single - lone)), lone | single):
            try:
                return self._order_with(kept, lone, widened, ties)
            except TrialError as failure:
                last = last or failure
            if not single - lone:
                break
        assert last is not None
        raise last

    def _lone(self, keeps: NDArray[np.bool_]) -> set[int]:
        """Groups that leave a single channel on an axis of some weight."""
        found: set[int] = set()
        for axis in self.axes:
            atoms = slice(axis.start, axis.start + axis.length)
            if int(keeps[atoms].sum()) == 1:
                found |= set(self.units.group_of[atoms].tolist()) - {-1}
        return found

    def _order_with(
        self,
        kept: Sequence[NDArray[np.int64]],
        lone: set[int],
        widened: set[int],
        ties: Sequence[AttributeTie] | None,
    ) -> Order:
        """Replay with one more unit in some groups, then take it away again."""
        wider = list(kept)
        for group in widened:
            rest = np.setdiff1d(np.arange(self.units.groups[group].size), kept[group])
            wider[group] = np.sort(np.append(kept[group], rest[:1]))
        order = self._replay(self.keeps(wider), ties)
        if not widened:
            return order
        keeps = self.keeps(kept)
        for axis in self.axes:
            atoms = order[axis.weight, axis.dim]
            own = set(self.units.group_of[atoms].tolist())
            # Which of several channels comes first may depend on the unit that is taken away again.
            if own & widened - lone and not (np.diff(atoms) > 0).all():
                raise TrialError("one unit alone cannot be put in order", 0, [axis.weight.rpartition(".")[0]], atoms)
            order[axis.weight, axis.dim] = atoms[keeps[atoms]]
        with cut_in_place(self.skeleton, self.cuts(order), self.changes(keeps, ties)):
            self._check(Alone(self.skeleton, self.axes, order, self.pairs, Recall(), self.discovered.values))
        return order

    def _replay(self, keeps: NDArray[np.bool_], ties: Sequence[AttributeTie] | None) -> Order:
        order = self.natural_order(keeps)
        changes = self.changes(keeps, ties)
        for _ in range(_PASSES):
            with cut_in_place(self.skeleton, self.cuts(order), changes):
                run = Replay(
                    self.skeleton, self.axes, order, self.pairs, self.recall or Recall(), self.discovered.values
                )
                self._check(run)
            if not run.wanted:
                return order
            order = {**order, **run.wanted}
        raise TrialError("no order of channels fits", run.operations, [""], np.empty(0, np.int64))

    def fault(self, kept: Sequence[NDArray[np.int64]]) -> TrialError | None:
        """Why a cut in the natural order does not run on shapes, if it does not."""
        keeps = self.keeps(kept)
        with cut_in_place(self.skeleton, self.cuts(self.natural_order(keeps)), self.changes(keeps)):
            try:
                self._check(LabelPass(self.skeleton, {}, self.discovered.values))
            except TrialError as failure:
                return failure
        return None

    def computed_with(self, kept: Sequence[NDArray[np.int64]]) -> set[Attribute]:
        """The attributes that follow this cut and that the code computes with.

        Args:
            kept: per group, the units that stay; a cut that runs.
        """
        keeps = self.keeps(kept)
        watch = Arithmetic()
        changes = watch.watched(self.changes(keeps))
        if changes:
            with cut_in_place(self.skeleton, self.cuts(self.order(kept)), changes), watch:
                self._check(LabelPass(self.skeleton, {}, self.discovered.values))
        return watch.used

    def _check(self, run: LabelPass) -> None:
        out: dict[bool, list[Leaf]] = {}
        try:
            for training in self.outputs:
                if len(self.outputs) > 1:
                    set_mode(self.skeleton, training)
                out[training] = run.forward(self.inputs)
            if isinstance(run, Replay):
                run.finish()
            if run.convolved != self.discovered.convolved and on_shapes(self.skeleton):
                raise Mismatch(BRANCH, np.empty(0, np.int64))
        except Mismatch as error:
            raise TrialError(str(error), run.operations, run.stack, error.atoms, _line(error)) from error
        except Exception as error:
            message = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            raise TrialError(
                message, run.operations, run.stack, involved(run.call), _line(error), sizes=True
            ) from error
        if any(signature(found) != self.outputs[training] for training, found in out.items()):
            raise TrialError("the output changes its shape", run.operations, [""], np.empty(0, np.int64))


def _line(error: Exception) -> str:
    """The innermost line of the network's own code that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
