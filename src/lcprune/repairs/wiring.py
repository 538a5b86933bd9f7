"""Which layers of a network can be repaired, and what one small pass tells of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lcprune.evaluate.prepare import call
from lcprune.graph.outputs import leaves, tensors
from lcprune.plan import Plan
from lcprune.repairs.layers import Columns, Layer, columns_after, is_layer, is_transposed
from lcprune.repairs.watch import OUTSIDE, Run, Watch, sizes_in


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that may be repaired.

    Attributes:
        name: of the layer, in both networks.
        columns: what the cut leaves of it.
        cut: it reads fewer channels than before.
        size: of what it reads, without images and channels: of a convolution, the feature map.
        runs: its runs in one pass, each as the first one that reads the very same tensor.
        norm: name of the batch norm that alone reads what it gives.
        patched: its outputs are products of its weight with patches of its input, once in a pass and at the same
            places in both networks.
    """

    name: str
    columns: Columns
    cut: bool
    size: tuple[int, ...]
    runs: tuple[Run, ...]
    norm: str | None
    patched: bool


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


def look(model: nn.Module, plan: Plan, inputs: Any) -> Wiring:
    """Run a network on a few images: which layers a plan touches, in which order they run, and who reads them.

    Args:
        model: the whole network, in evaluation mode.
        plan: what is cut of it.
        inputs: of a few images.
    """
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    users = Counter(id(tensor) for module in model.modules() for tensor in module._parameters.values())
    with torch.no_grad(), Watch(model, layers) as watch:
        watch.given_out(tensors(leaves(call(model, inputs))))
    after = sizes_in(plan.apply(model), inputs)
    found: list[Site] = []
    left: dict[str, str] = {}
    for name, layer in layers.items():
        own = plan.cuts.get(names[id(layer.weight)], {})
        reads_less = (0 if is_transposed(layer) else 1) in own
        columns = columns_after(layer, own, watch.places.get(name, 1))
        if any(users[id(tensor)] > 1 for tensor in layer._parameters.values() if tensor is not None):
            columns = "its weight or bias is another layer's, too"
        elif name in watch.reasons:
            columns = watch.reasons[name]
        elif name not in watch.order:
            columns = "it does not run in evaluation mode"
        if isinstance(columns, str):
            left |= {name: columns} if reads_less or (own and columns == OUTSIDE) else {}
            continue
        runs = tuple(watch.same[name, number] for number in range(watch.count[name]))
        size = watch.sizes[name]
        plain = not is_transposed(layer) and columns.taps == 1 and name not in watch.odd
        patched = plain and len(runs) == 1 and after.get(name) == size
        found.append(Site(name, columns, reads_less, size[1:], runs, watch.norm(name), patched))
    found.sort(key=lambda site: watch.order.index(site.name))
    left |= _without_layers(model, plan, layers, {names[tensor] for tensor in watch.multiplied if tensor in names})
    return Wiring(tuple(found), left, watch.numbers)


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
