"""Which layers of a network can be repaired, and what one small pass tells of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import call
from lcprune.graph.tail import Bounds
from lcprune.plan import Plan
from lcprune.repairs.layers import Columns, Layer, columns_after, coverage, is_transposed, layers_of, size_of
from lcprune.repairs.watch import OUTSIDE, Beside, LayerRun, Map, Watch, listening


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that may be repaired.

    Attributes:
        name: of the layer, in both networks.
        columns: what the cut leaves of it.
        runs: its runs in one pass, each as the first one that reads the very same tensor.
        norm: name of the batch norm that alone reads what it gives.
        patched: its outputs are products of its weight with patches of its input, once in a pass and at the same
            places in both networks.
        cover: of every tap, the share of outputs for which it lies on the input; None if it reads all channels.
        beside: what is added to its outputs, behind its batch norm, and is there before it runs.
        bounds: the least and the most of these that a ReLU lets through, where one alone reads them.
    """

    name: str
    columns: Columns
    runs: tuple[LayerRun, ...]
    norm: str | None
    patched: bool
    cover: Tensor | None
    beside: Beside | None
    bounds: Bounds | None

    @property
    def cut(self) -> bool:
        """Whether it reads fewer channels than before."""
        return self.cover is not None


@dataclass(frozen=True, eq=False)
class Gate:
    """A module through whose first argument all goes that layers behind it read of the inputs.

    Attributes:
        name: of the module; empty for the network itself.
        numbers: most that one image takes there, at a later gate, or between two layers from there on.
        behind: the layers that run from there on, with what they read and give.
    """

    name: str
    numbers: int
    behind: Mapping[str, Sequence[Map]]


@dataclass(frozen=True, eq=False)
class Wiring:
    """What is known of a network's layers."""

    sites: tuple[Site, ...]  # layers that can be repaired, in the order in which they run
    left: dict[str, str]  # layers that read fewer channels and cannot be repaired -> why
    gates: tuple[Gate, ...]  # in the order in which they run: the network itself is the first


class Survey:
    """What one small pass over a whole network, in evaluation mode, tells of its layers, for every cut of it."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, self.watch = model, Watch(model, inputs)
        self._users = Counter(id(tensor) for module in model.modules() for tensor in module._parameters.values())
        self._covers: dict[str, Tensor] = {}
        self._gates = tuple(self._found())

    def _found(self) -> Iterator[Gate]:
        gates = [("", 0, 0), *(gate for gate in self.watch.gates if gate[0])]
        for place, (name, clock, _) in enumerate(gates):
            layers = ((layer, self.watch.seen[layer]) for layer in self.watch.layers)
            behind = {layer: seen.maps for layer, seen in layers if seen.began >= clock}
            yield Gate(name, max(self.watch.numbers(clock), *(arrives for *_, arrives in gates[place:])), behind)

    def wiring(self, plan: Plan, after: Mapping[str, tuple[int, ...]] | None = None) -> Wiring:
        """Which layers a plan touches, and how.

        Args:
            plan: what is cut of the network.
            after: sizes of what layers read in the cut network, by which layers are known whose outputs can be
                compared place by place; None for whoever does not compare them.
        """
        watch, found, left = self.watch, list[Site](), dict[str, str]()
        for name, layer in watch.layers.items():
            seen, own = watch.seen[name], plan.cuts.get(watch.names[id(layer.weight)], {})
            reads_less = (0 if is_transposed(layer) else 1) in own
            columns = columns_after(layer, own, seen.places)
            if any(self._users[id(tensor)] > 1 for tensor in layer._parameters.values() if tensor is not None):
                columns = "its weight or bias is another layer's, too"
            elif seen.why is not None:
                columns = seen.why
            elif not seen.runs:
                columns = "it does not run in evaluation mode"
            if isinstance(columns, str):
                left |= {name: columns} if reads_less or (own and columns == OUTSIDE) else {}
                continue
            plain = not is_transposed(layer) and columns.taps == 1 and not seen.odd
            patched = plain and len(seen.runs) == 1 and after is not None and after.get(name) == seen.size
            cover = self._cover(name, columns) if reads_less else None
            behind = watch.beside(name), watch.bounds(name)
            found.append(Site(name, columns, (*seen.runs,), watch.norm(name), patched, cover, *behind))
        found.sort(key=lambda site: watch.order[site.name])
        left |= self._without_layers(plan)
        return Wiring(tuple(found), left, self._gates)

    def _cover(self, name: str, columns: Columns) -> Tensor:
        layer = self.watch.layers[name]
        if isinstance(layer, nn.Linear):
            return layer.weight.new_ones(columns.taps, dtype=torch.float64)
        if name not in self._covers:
            self._covers[name] = coverage(layer, self.watch.seen[name].size[1:])
        return self._covers[name]

    def _without_layers(self, plan: Plan) -> Iterator[tuple[str, str]]:
        """Weights that read fewer channels and are no layer's own numbers -> why they cannot be repaired."""
        for weight, own in plan.cuts.items():
            name, _, computed = weight.partition(".parametrizations.")
            name = name if computed else weight.rpartition(".")[0]
            owner = self.model.get_submodule(name)
            if not isinstance(owner, Layer):
                if 1 in own and weight in self.watch.multiplied:
                    yield weight, "it is no weight of a convolution or a linear layer"
            elif name not in self.watch.layers and (0 if is_transposed(owner) else 1) in own:
                yield name, "its weight is computed from other numbers"


def look(model: nn.Module, plan: Plan, inputs: Any) -> Wiring:
    """Run a network, in evaluation mode, and a cut of it on a few images: which layers the plan touches, and how."""
    return Survey(model, inputs).wiring(plan, _sizes_in(plan.apply(model).eval(), inputs))


def _sizes_in(model: nn.Module, inputs: Any) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, layer: Layer, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            found[name] = size_of(layer, args[0])

    with listening(model, layers_of(model), note, before=True), torch.no_grad():
        call(model, inputs)
    return found
