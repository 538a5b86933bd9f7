"""The second run: the cut network's own labels must show every consumer the units that it had, minus the removed.

After a cut, operators that move data act on the shorter axis: rolling the kept channels is not keeping some of the
rolled ones. So the cut network is run on labels again. Where a weight meets its channels in another order than
before, the weight's positions are put into the order in which they are delivered; where two activations do not fit
any more, the cut is impossible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.batches import Inputs
from lcprune.copies import named_tensors
from lcprune.graph.discover import Atoms, WeightAxis, columns, real, tied
from lcprune.graph.label_pass import LABELS, LabelPass
from lcprune.graph.labels import Labels, Taken, Use
from lcprune.graph.outputs import Leaf, tensors
from lcprune.graph.pairs import Pairs, among
from lcprune.graph.recall import Recall, Result, again
from lcprune.graph.rules import Call, Step, find_rule
from lcprune.graph.site import Site
from lcprune.graph.values import Values

Order = dict[tuple[str, int], Atoms]

_TAKEN = "other channels would be taken by position than before"
BRANCH = "with fewer channels the code runs other operators, or with other settings, than before"


class Mismatch(Exception):
    """Channels meet that did not meet before the cut.

    Args:
        message: what happened.
        atoms: the atoms that are involved.
    """

    def __init__(self, message: str, atoms: Atoms) -> None:
        super().__init__(message)
        self.atoms = atoms


class Replay(LabelPass):
    """Run a cut network on labels and check it against the uncut one.

    Args:
        model: the cut skeleton.
        axes: the weight axes of the uncut network.
        order: per weight axis, the kept atoms in the order in which they now lie.
        pairs: which atoms met before.
        recall: what operators gave in other replays.
        values: as for `LabelPass`.
    """

    def __init__(
        self,
        model: nn.Module,
        axes: Sequence[WeightAxis],
        order: Mapping[tuple[str, int], Atoms],
        pairs: Pairs,
        recall: Recall,
        values: Values | None = None,
    ) -> None:
        by_weight: dict[str, list[WeightAxis]] = {}
        for axis in axes:
            by_weight.setdefault(axis.weight, []).append(axis)
        weights = {}
        for name, tensor in named_tensors(model):
            layers = []
            for axis in by_weight.get(name, ()):
                atoms = torch.from_numpy(order[axis.weight, axis.dim])
                layers.append(atoms.reshape([-1 if d == axis.dim else 1 for d in range(tensor.ndim)]))
            if layers:
                weights[name] = recall.one(Labels(tuple(layers), weight=True))
        super().__init__(model, weights, values)
        self.pairs, self._recall = pairs, recall
        self._key: Any = None  # of the operator that is running, unless it must not be remembered
        self._known: Result | None = None
        self._mixed: list[Atoms] = []  # by that operator, as sums
        self.wanted: Order = {}
        self._axes, self._starts = list(axes), np.array([axis.start for axis in axes], dtype=np.int64)
        kept = np.zeros(pairs.count, dtype=bool)
        kept[np.concatenate(list(order.values()) or [np.empty(0, np.int64)])] = True
        # What is left of every part that was taken by position, and of the axis it was taken from.
        self._parts = [(part, part.atoms[kept[part.atoms]], part.whole[kept[part.whole]]) for part in pairs.parts]
        self._mixing = pairs.mixing(kept)
        self._left = {(part.site, atoms.tobytes()) for part, atoms, _ in self._parts}
        self._taken: set[tuple[Site, bytes]] = set()
        self._uses: set[tuple[int, Use]] = set()  # of what `recall` keeps alive
        self._steps = 0
        self._on_shapes = on_shapes(model)

    def forward(self, args: Inputs) -> list[Leaf]:
        found = super().forward(args)
        for tensor in tensors(found):
            self.read(self.labels_of(tensor))
        return found

    def finish(self) -> None:
        """After the last pass: what has not been done that was done before."""
        if self._on_shapes and self._steps < len(self.pairs.steps):
            raise Mismatch(BRANCH, np.empty(0, np.int64))
        # Taking all that is left may be no operator at all; a part of which nothing is left may not be asked for. Not
        # both at one site: all that is left would be taken for the part.
        asked = {site for site, _ in self._taken} | {
            part.site for part, atoms, whole in self._parts if len(atoms) == len(whole)
        }
        for part, atoms, whole in self._parts:
            missing = len(atoms) < len(whole) and (part.site, atoms.tobytes()) not in self._taken
            if missing and (len(atoms) or part.site not in asked):
                self.stack.append(part.module)
                raise Mismatch(_TAKEN, whole)

    def recalled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        told = self.values is not None and func._schema.name == "aten::index"  # perhaps how many are wanted
        self._key = None if told else self._recall.key(func, args, kwargs, self.labels_of, self.site)
        self._known, self._mixed = None if self._key is None else self._recall.get(self._key), []
        return None if self._known is None else self._known.call

    def repeat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._known
        assert known is not None
        if known.step is not None:
            self.step(known.step)
        for sums in known.mixed:
            self._mixes(sums)
        tensors = again(known, func, args, kwargs)
        for tensor, labels in zip(tensors, known.labels, strict=True):
            if labels is not None:
                setattr(tensor, LABELS, labels)
        return tensors[0] if known.single else tuple(tensors)

    def after(self, call: Call, out: Any) -> None:
        found: list[Labels | None] = []
        for tensor in [out] if isinstance(out, Tensor) else out if isinstance(out, (list, tuple)) else ():
            labels = getattr(tensor, LABELS, None)
            if labels is not None and labels.places:
                self._key = None
            elif labels is not None:
                labels = self._recall.one(labels)
                setattr(tensor, LABELS, labels)
            found.append(labels)
        if self._key is not None and found:
            step = find_rule(call.func).step(call) if call.labelled else None
            self._recall.add(self._key, call, step, out, found, self._mixed)

    def step(self, step: Step) -> None:
        steps, place = self.pairs.steps, self._steps
        if not self._on_shapes or (place > 0 and steps[place - 1] == step):
            return
        if place >= len(steps) or steps[place] != step:
            raise Mismatch(BRANCH, involved(self.call))
        self._steps += 1

    def take(self, taken: Taken, use: Use) -> None:
        if (id(taken), use) in self._uses:
            return
        self._uses.add((id(taken), use))
        atoms = real(taken.part)
        key = (taken.site, atoms.tobytes())
        before = self.pairs.uses.get(use)  # None: with a number that follows from the size
        if len(atoms) and (key not in self._left or (before is not None and not before.issuperset(atoms.tolist()))):
            raise Mismatch(_TAKEN, real(taken.whole))
        self._taken.add(key)

    def mix(self, layer: Tensor, dims: Sequence[int]) -> None:
        self._mixed.append(self.pairs.sums(columns(layer, dims)))
        self._mixes(self._mixed[-1])

    def _mixes(self, sums: Atoms) -> None:
        if not among(sums, self._mixing).all():
            raise Mismatch("other channels would influence one another than before", involved(self.call))

    def meet(self, a: Tensor, b: Tensor, follower: int | None = None) -> Tensor:
        try:
            left, right = torch.broadcast_tensors(a, b)
        except RuntimeError as error:
            raise Mismatch(str(error), np.concatenate([_flat(a), _flat(b)])) from error
        if not self.pairs.met(_flat(left), _flat(right), strict=follower is not None):
            if follower is None:
                raise Mismatch(
                    "channels would meet that did not meet before",
                    np.concatenate([_flat(left), _flat(right)]),
                )
            self._follow(*((right, a) if follower == 0 else (left, b)))
        return torch.where(left < 0, right, left)

    def _follow(self, leader: Tensor, own: Tensor) -> None:
        """Put a weight's axis into the order in which its channels are delivered."""
        self._key = None
        for dim in range(own.ndim):
            if own.shape[dim] == 1:
                leader = leader.narrow(dim, 0, 1)
        delivered, mine = _flat(leader), _flat(own)
        axis = self._axis_of(mine)
        if axis is None:
            raise Mismatch("channels would meet that did not meet before", np.concatenate([delivered, mine]))
        partners = self.pairs.partners(axis)
        used: dict[int, int] = {}
        wanted: list[int] = []
        kept = set(mine.tolist())
        for atom in delivered.tolist():
            choices = [own_atom for own_atom in partners.get(atom, []) if own_atom in kept]
            position = used.get(atom, 0)
            if position >= len(choices):
                raise Mismatch(
                    "a layer would read a channel that it did not read before",
                    np.concatenate([delivered, mine]),
                )
            used[atom] = position + 1
            wanted.append(choices[position])
        result = np.array(list(dict.fromkeys(wanted)), dtype=np.int64)
        key = (axis.weight, axis.dim)
        known = self.wanted.get(key)
        if len(result) != len(kept) or (known is not None and not np.array_equal(known, result)):
            raise Mismatch("a layer would need its channels in two orders at once", np.concatenate([delivered, mine]))
        self.wanted[key] = result

    def _axis_of(self, atoms: Atoms) -> WeightAxis | None:
        """The weight axis to which atoms belong, if it is one."""
        if len(atoms) == 0 or atoms.min() < 0:
            return None
        found = np.unique(np.searchsorted(self._starts, atoms, side="right") - 1)
        return self._axes[int(found[0])] if len(found) == 1 else None

    def tie(self, layer: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            if layer.shape[dim] > 1:
                if not self.pairs.tied(*tied(layer, dim)):
                    raise Mismatch("channels would be tied that were not tied before", _flat(layer))
                layer = layer.narrow(dim, 0, 1)
        return layer


def on_shapes(model: nn.Module) -> bool:
    """Whether a network runs without data: code that looks at values may loop more or less often over others."""
    return all(tensor.device.type == "meta" for tensor in model.parameters())


def involved(call: Any) -> Atoms:
    """The atoms under the tensors of the last operator."""
    layers = [_flat(layer) for labels in (call.labels if call else []) for layer in labels.layers]
    return np.unique(np.concatenate(layers)) if layers else np.empty(0, np.int64)


def _flat(layer: Tensor) -> Atoms:
    array: Atoms = layer.reshape(-1).numpy()
    return array
