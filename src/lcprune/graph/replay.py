"""The second run: the cut network's own labels must show every consumer the units that it had, minus the removed.

After a cut, operators that move data act on the shorter axis: rolling the kept channels is not keeping some of the
rolled ones. So the cut network is run on labels again. Where a weight meets its channels in another order than
before, the weight's positions are put into the order in which they are delivered; where two activations do not fit
any more, the cut is impossible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.batches import Inputs
from lcprune.graph.atoms import Atoms, Order, WeightAxis, columns, real, tied, weight_labels
from lcprune.graph.label_pass import LABELS, LabelPass
from lcprune.graph.labels import Labels, Taken, Use
from lcprune.graph.outputs import Leaf, tensors
from lcprune.graph.pairs import Pairs, among
from lcprune.graph.recall import Recall, Result, again
from lcprune.graph.rules import Call, Step, find_rule
from lcprune.graph.site import CodeSite, own_code

_TAKEN = "other channels would be taken by position than before"
_STRANGERS = "channels would meet that did not meet before"
BRANCH = "with fewer channels the code runs other operators, or with other settings, than before"


class Mismatch(Exception):
    """Channels meet that did not meet before the cut.

    Args:
        message: what happened.
        atoms: the atoms that are involved, as arrays or layers.
    """

    def __init__(self, message: str, *atoms: Atoms | Tensor) -> None:
        super().__init__(message)
        self.atoms = np.concatenate([np.empty(0, np.int64), *(np.asarray(own).ravel() for own in atoms)])


class Replay(LabelPass):
    """Run a cut network on labels and check it against the uncut one.

    Args:
        model: the cut skeleton.
        order: per weight axis, the kept atoms in the order in which they now lie.
        pairs: which atoms met before.
        recall: what operators gave in other replays.
    """

    def __init__(self, model: nn.Module, order: Order, pairs: Pairs, recall: Recall) -> None:
        self.before, self.pairs, self._recall = pairs.discovered, pairs, recall
        weights = {name: recall.one(labels) for name, labels in weight_labels(model, order).items()}
        super().__init__(model, weights, self.before.values)
        self._key: Any = None  # of the operator that is running, unless it must not be remembered
        self._known: Result | None = None
        self._mixed: list[Atoms] = []  # by that operator, as sums
        self.wanted: Order = {}
        kept = np.zeros(pairs.count, dtype=bool)
        for atoms in order.values():
            kept[atoms] = True
        # What is left of every part that was taken by position, and of the axis it was taken from.
        self._parts = [
            (part, part.atoms[kept[part.atoms]], part.whole[kept[part.whole]]) for part in self.before.parts.values()
        ]
        self._mixing = pairs.mixing(kept)
        self._left = {(part.site, atoms.tobytes()) for part, atoms, _ in self._parts}
        self._taken: set[tuple[CodeSite, bytes]] = set()
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
        if self._on_shapes and self._steps < len(self.before.steps):
            raise Mismatch(BRANCH)
        # Taking all that is left may be no operator at all; a part of which nothing is left may not be asked for. Not
        # both at one site: all that is left would be taken for the part.
        asked = {site for site, _ in self._taken}
        asked |= {part.site for part, atoms, whole in self._parts if len(atoms) == len(whole)}
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
        steps, place = self.before.steps, self._steps
        if not self._on_shapes:
            return
        if place > 0 and steps[place - 1][0] == step and steps[place - 1][1] == own_code(self.site()):
            return
        if place >= len(steps) or steps[place][0] != step:
            raise Mismatch(BRANCH, involved(self.call))
        self._steps += 1

    def take(self, taken: Taken, use: Use) -> None:
        if (id(taken), use) in self._uses:
            return
        self._uses.add((id(taken), use))
        atoms = real(taken.part)
        key = (taken.site, atoms.tobytes())
        before = self.before.uses.get(use)  # None: with a number that follows from the size
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
            raise Mismatch(str(error), a, b) from error
        if not self.pairs.met(left.numpy().ravel(), right.numpy().ravel(), strict=follower is not None):
            if follower is None:
                raise Mismatch(_STRANGERS, left, right)
            self._follow(*((right, a) if follower == 0 else (left, b)))
        return torch.where(left < 0, right, left)

    def _follow(self, leader: Tensor, own: Tensor) -> None:
        """Put a weight's axis into the order in which its channels are delivered."""
        self._key = None
        for dim in range(own.ndim):
            if own.shape[dim] == 1:
                leader = leader.narrow(dim, 0, 1)
        delivered, mine = leader.numpy().ravel(), own.numpy().ravel()
        axis = self._axis_of(mine)
        if axis is None:
            raise Mismatch(_STRANGERS, delivered, mine)
        partners = self.pairs.partners(axis)
        used: Counter[int] = Counter()
        wanted: list[int] = []
        kept = set(mine.tolist())
        for atom in delivered.tolist():
            choices = [own_atom for own_atom in partners.get(atom, []) if own_atom in kept]
            if used[atom] >= len(choices):
                raise Mismatch("a layer would read a channel that it did not read before", delivered, mine)
            wanted.append(choices[used[atom]])
            used[atom] += 1
        result = np.array(list(dict.fromkeys(wanted)), dtype=np.int64)
        if len(result) != len(kept) or not np.array_equal(self.wanted.setdefault(axis, result), result):
            raise Mismatch("a layer would need its channels in two orders at once", delivered, mine)

    def _axis_of(self, atoms: Atoms) -> WeightAxis | None:
        """The weight axis to which atoms belong, if it is one."""
        found = np.unique(self.before.axis_of[atoms[atoms >= 0]])
        return self.before.axes[found[0]] if len(found) == 1 and atoms.min() >= 0 else None

    def tie(self, layer: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            if layer.shape[dim] > 1:
                if not self.pairs.tied(*tied(layer, dim)):
                    raise Mismatch("channels would be tied that were not tied before", layer)
                layer = layer.narrow(dim, 0, 1)
        return layer


class Alone(Replay):
    """A replay where one channel is left on an axis, which cannot be told from an axis that is broadcast.

    It checks that the network runs and what it takes by position; not who meets, nor which operators run. It has a
    `Recall` of its own.
    """

    def __init__(self, model: nn.Module, order: Order, pairs: Pairs) -> None:
        super().__init__(model, order, pairs, Recall())
        self._on_shapes = False  # no steps are counted

    meet, mix, tie, step = LabelPass.meet, LabelPass.mix, LabelPass.tie, LabelPass.step


def on_shapes(model: nn.Module) -> bool:
    """Whether a network runs without data: code that looks at values may loop more or less often over others."""
    return all(tensor.device.type == "meta" for tensor in model.parameters())


def involved(call: Call | None) -> Atoms:
    """The atoms under the tensors of the last operator."""
    layers = [layer.numpy().ravel() for labels in (call.labels if call else []) for layer in labels.layers]
    return np.unique(np.concatenate([np.empty(0, np.int64), *layers]))
