"""What a trace knows of a network, and how a selection becomes cuts."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.batches import Inputs
from lcprune.errors import PlanError
from lcprune.graph.arithmetic import Arithmetic, Attribute
from lcprune.graph.atoms import Atoms, Order, WeightAxis
from lcprune.graph.discover import Discover
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.outputs import Leaf, signature
from lcprune.graph.pairs import Pairs
from lcprune.graph.recall import Recall
from lcprune.graph.replay import BRANCH, Alone, Mismatch, Replay, involved, on_shapes
from lcprune.graph.resolve import Units
from lcprune.graph.site import LIBRARIES
from lcprune.graph.skeleton import set_mode
from lcprune.select import Kept
from lcprune.surgery import AttributeChange, Cuts, cut_in_place

_PASSES = 4  # one to see the order, one to confirm it, and room for an order that depends on another
_NONE: Atoms = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class AttributeTie:
    """An integer that a module keeps (at `index` of a list or tuple) and that is the length of an axis."""

    module: str
    attribute: str
    index: int | None
    old: int  # in the uncut network
    atoms: Atoms  # what lies along the axis


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
        self.operations, self.stack, self.atoms = operations, tuple(stack), atoms
        self.line, self.sizes = line, sizes


@dataclass(eq=False)
class Structure:
    """A traced network, ready to be cut."""

    skeleton: nn.Module  # the network without data
    inputs: Inputs  # example inputs for it
    # What its outputs look like, by mode (False for evaluation, True for training). Training mode is only there if it
    # runs layers that evaluation mode does not.
    outputs: dict[bool, list[tuple[str, Any]]]
    discovered: Discover  # the first run
    pairs: Pairs = field(init=False)
    units: Units = field(init=False)  # set and replaced while trials go on
    ties: list[AttributeTie] = field(default_factory=list)  # integers that follow a cut
    natural: bool = field(init=False)  # every weight keeps the order of its positions, whatever is cut
    recall: Recall | None = field(default=None, repr=False)  # what operators gave, while trials go on
    single: bool = True  # the network runs with one unit of each group

    def __post_init__(self) -> None:
        self.pairs, self.natural = Pairs(self.discovered), not self.discovered.reordered

    @property
    def axes(self) -> list[WeightAxis]:
        """All dimensions of all weights."""
        return self.discovered.axes

    def keeps(self, kept: Kept) -> NDArray[np.bool_]:
        """Per atom (phantoms last), whether it stays if these units of each group do."""
        gone = np.zeros(len(self.units.unit_class), dtype=bool)
        for classes, own in zip(self.units.classes, kept, strict=True):
            gone[np.delete(classes, own)] = True
        return ~gone[self.units.unit_class]

    def natural_order(self, keeps: NDArray[np.bool_]) -> Order:
        """Kept atoms of every weight axis, in the order of the uncut network."""
        return {axis: axis.atoms[keeps[axis.atoms]] for axis in self.axes}

    def changes(self, keeps: NDArray[np.bool_]) -> list[AttributeChange]:
        """The integers that follow a cut."""
        result = []
        for tie in self.ties:
            new = tie.old - int((~keeps[self.units.position(tie.atoms)]).sum())
            if new != tie.old:
                result.append(AttributeChange(tie.module, tie.attribute, tie.index, tie.old, new))
        return result

    def cuts(self, order: Order) -> dict[str, dict[int, NDArray[np.int64]]]:
        """Weight -> dimension -> kept positions, for every dimension that is not left as it is."""
        result: dict[str, dict[int, NDArray[np.int64]]] = {}
        for axis, atoms in order.items():
            if not np.array_equal(atoms, axis.atoms):
                result.setdefault(axis.weight, {})[axis.dim] = atoms - axis.start
        return result

    def surgery(self, kept: Kept) -> tuple[Cuts, tuple[AttributeChange, ...]]:
        """What a plan that keeps these units does to weights and numbers.

        Raises:
            PlanError: it cannot be done.
        """
        keeps = self.keeps(kept)
        natural = self.natural and (self.single or min(map(len, kept), default=2) > 1)
        try:
            order = self.natural_order(keeps) if natural else self.order(kept)
        except TrialError as error:
            raise PlanError(f"this selection cannot be cut: {error}") from error
        return self.cuts(order), tuple(self.changes(keeps))

    def order(self, kept: Kept) -> Order:
        """The order in which every weight must hold its kept positions, found by running the cut network.

        An axis of one channel cannot be told from an axis that is broadcast, so where one channel is left the labels
        are followed with two; of the network with one it is checked that it runs and what it takes by position.

        Raises:
            TrialError: if there is none, or the cut network does not run.
        """
        single = {g for g, own in enumerate(kept) if len(own) == 1 and self.units.groups[g].size > 2}
        keeps = self.keeps(kept)
        lone: set[int] = set()  # groups that leave a single channel on an axis of some weight
        for axis in self.axes:
            if keeps[axis.atoms].sum() == 1:
                lone |= self.units.groups_of(axis.atoms)
        failures = []
        for widened in (lone, *(lone | {group} for group in sorted(single - lone)), lone | single):
            try:
                return self._order_with(kept, lone, widened)
            except TrialError as failure:
                failures.append(failure)
            if not single - lone:
                break
        raise failures[0]

    def _order_with(self, kept: Kept, lone: set[int], widened: set[int]) -> Order:
        """Replay with one more unit in some groups, then take it away again."""
        wider = list(kept)
        for group in widened:
            rest = np.setdiff1d(np.arange(self.units.groups[group].size), kept[group])
            wider[group] = np.sort(np.append(kept[group], rest[:1]))
        order = self._replay(self.keeps(wider))
        if not widened:
            return order
        keeps = self.keeps(kept)
        for axis, atoms in order.items():
            # Which of several channels comes first may depend on the unit that is taken away again.
            if self.units.groups_of(atoms) & widened - lone and not (np.diff(atoms) > 0).all():
                raise TrialError("one unit alone cannot be put in order", 0, [axis.weight.rpartition(".")[0]], atoms)
        order = {axis: atoms[keeps[atoms]] for axis, atoms in order.items()}
        with self._cut(order, self.changes(keeps)):
            self._check(Alone(self.skeleton, order, self.pairs))
        return order

    def _replay(self, keeps: NDArray[np.bool_]) -> Order:
        order, changes = self.natural_order(keeps), self.changes(keeps)
        for _ in range(_PASSES):
            with self._cut(order, changes):
                run = Replay(self.skeleton, order, self.pairs, self.recall or Recall())
                self._check(run)
            if not run.wanted:
                return order
            order = {**order, **run.wanted}
        raise TrialError("no order of channels fits", run.operations, [""], _NONE)

    def fault(self, kept: Kept) -> TrialError | None:
        """Why a cut in the natural order does not run on shapes, if it does not."""
        keeps = self.keeps(kept)
        with self._cut(self.natural_order(keeps), self.changes(keeps)):
            try:
                self._check(LabelPass(self.skeleton, {}, self.discovered.values))
            except TrialError as failure:
                return failure
        return None

    def computed_with(self, kept: Kept) -> set[Attribute]:
        """The attributes that follow this cut, which must run, and that the code computes with."""
        watch = Arithmetic()
        changes = watch.watched(self.changes(self.keeps(kept)))
        if changes:
            with self._cut(self.order(kept), changes), watch:
                self._check(LabelPass(self.skeleton, {}, self.discovered.values))
        return watch.used

    def _cut(self, order: Order, changes: Sequence[AttributeChange]) -> AbstractContextManager[None]:
        return cut_in_place(self.skeleton, self.cuts(order), changes)

    def _check(self, run: LabelPass) -> None:
        """Run the cut skeleton.

        Raises:
            TrialError: it fails, or its outputs are not what they were.
        """
        out: dict[bool, list[Leaf]] = {}
        try:
            for training in self.outputs:
                if len(self.outputs) > 1:
                    set_mode(self.skeleton, training)
                out[training] = run.forward(self.inputs)
            if isinstance(run, Replay):
                run.finish()
            if run.convolved != self.discovered.convolved and on_shapes(self.skeleton):
                raise Mismatch(BRANCH)
        except Exception as error:
            atoms = error.atoms if isinstance(error, Mismatch) else involved(run.call)
            message = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            sizes = not isinstance(error, Mismatch)
            raise TrialError(message, run.operations, run.stack, atoms, _line(error), sizes) from error
        if any(signature(found) != self.outputs[training] for training, found in out.items()):
            raise TrialError("the output changes its shape", run.operations, [""], _NONE)


def _line(error: Exception) -> str:
    """The innermost line of the network's own code that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
