"""Which layers of a network can be repaired, and what one small pass tells of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import call
from lcprune.graph.outputs import leaves, tensors
from lcprune.plan import Plan
from lcprune.repairs.layers import Columns, Layer, columns_after, coverage, groups_of, is_layer, is_transposed, matrix
from lcprune.repairs.watch import OUTSIDE, Beside, Run, Watch, sizes_in


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that may be repaired.

    Attributes:
        name: of the layer, in both networks.
        columns: what the cut leaves of it.
        cut: it reads fewer channels than before.
        runs: its runs in one pass, each as the first one that reads the very same tensor.
        norm: name of the batch norm that alone reads what it gives.
        patched: its outputs are products of its weight with patches of its input, once in a pass and at the same
            places in both networks.
        cover: of every tap, the share of outputs for which it lies on the input; None if it reads all channels.
        beside: what is added to its outputs, behind its batch norm, and is there before it runs.
    """

    name: str
    columns: Columns
    cut: bool
    runs: tuple[Run, ...]
    norm: str | None
    patched: bool
    cover: Tensor | None = None
    beside: Beside | None = None


@dataclass(frozen=True, eq=False)
class Wiring:
    """What is known of a network's layers.

    Attributes:
        sites: layers that can be repaired, in the order in which they run.
        left: layers that read fewer channels and cannot be repaired -> why.
        numbers: most numbers that one image takes between two layers.
    """

    sites: tuple[Site, ...]
    left: dict[str, str]
    numbers: int


class Survey:
    """What one small pass over a whole network tells of its layers, for every cut of it.

    Args:
        model: the whole network, in evaluation mode.
        inputs: of a few images.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.layers = {name: module for name, module in model.named_modules() if is_layer(module)}
        self._names = {id(tensor): name for name, tensor in model.named_parameters()}
        self._users = Counter(id(tensor) for module in model.modules() for tensor in module._parameters.values())
        self._covers: dict[str, Tensor] = {}
        with torch.no_grad(), Watch(model, self.layers) as self.watch:
            self.watch.given_out(tensors(leaves(call(model, inputs))))
        self._order = {name: place for place, name in enumerate(self.watch.order)}
        self._multiplied = {self._names[one] for one in self.watch.multiplied if one in self._names}

    def wiring(self, plan: Plan, after: Mapping[str, tuple[int, ...]] | None = None) -> Wiring:
        """Which layers a plan touches, and how.

        Args:
            plan: what is cut of the network.
            after: sizes of what layers read in the cut network (`sizes_in`), by which layers are known whose outputs
                can be compared place by place; None for whoever does not compare them.
        """
        watch, found, left = self.watch, list[Site](), dict[str, str]()
        for name, layer in self.layers.items():
            own = plan.cuts.get(self._names[id(layer.weight)], {})
            reads_less = (0 if is_transposed(layer) else 1) in own
            columns = columns_after(layer, own, watch.places.get(name, 1))
            if any(self._users[id(tensor)] > 1 for tensor in layer._parameters.values() if tensor is not None):
                columns = "its weight or bias is another layer's, too"
            elif name in watch.reasons:
                columns = watch.reasons[name]
            elif name not in self._order:
                columns = "it does not run in evaluation mode"
            if isinstance(columns, str):
                left |= {name: columns} if reads_less or (own and columns == OUTSIDE) else {}
                continue
            runs = tuple(watch.same[name, number] for number in range(watch.count[name]))
            size = watch.sizes[name]
            plain = not is_transposed(layer) and columns.taps == 1 and name not in watch.odd
            patched = plain and len(runs) == 1 and after is not None and after.get(name) == size
            cover = self._cover(name, columns) if reads_less else None
            found.append(Site(name, columns, reads_less, runs, watch.norm(name), patched, cover, watch.beside(name)))
        found.sort(key=lambda site: self._order[site.name])
        left |= _without_layers(self.model, plan, self.layers, self._multiplied)
        return Wiring(tuple(found), left, watch.numbers)

    def _cover(self, name: str, columns: Columns) -> Tensor:
        layer = self.layers[name]
        if isinstance(layer, nn.Linear):
            return layer.weight.new_ones(columns.taps, dtype=torch.float64)
        if name not in self._covers:
            reads = groups_of(layer) * matrix(layer).shape[2]
            self._covers[name] = coverage(layer, self.watch.sizes[name][1:], reads)
        return self._covers[name]


def look(model: nn.Module, plan: Plan, inputs: Any) -> Wiring:
    """Run a network and a cut of it on a few images: which layers the plan touches, in which order they run.

    Args:
        model: the whole network, in evaluation mode.
        plan: what is cut of it.
        inputs: of a few images.
    """
    return Survey(model, inputs).wiring(plan, sizes_in(plan.apply(model), inputs))


def _without_layers(
    model: nn.Module, plan: Plan, layers: Mapping[str, Layer], multiplied: set[str]
) -> Iterator[tuple[str, str]]:
    """Weights that read fewer channels and are no layer's own numbers -> why they cannot be repaired."""
    for weight, own in plan.cuts.items():
        name, _, computed = weight.partition(".parametrizations.")
        name = name if computed else weight.rpartition(".")[0]
        owner = model.get_submodule(name)
        if not isinstance(owner, Layer):
            if 1 in own and weight in multiplied:
                yield weight, "it is no weight of a convolution or a linear layer"
        elif name not in layers and (0 if is_transposed(owner) else 1) in own:
            yield name, "its weight is computed from other numbers"
