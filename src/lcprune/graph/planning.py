"""From a selection to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lcprune.batches import shape_of
from lcprune.copies import ORIGIN, named_tensors
from lcprune.errors import PlanError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.graph.structure import TrialError
from lcprune.plan import Plan
from lcprune.summary import COLUMNS

KeptUnits: TypeAlias = "Mapping[str, Any] | Sequence[Any]"


def make_plan(graph: ChannelGraph, kept: KeptUnits) -> Plan:
    """The plan that keeps these units; see `ChannelGraph.plan`."""
    structure = graph.structure
    if structure is None:
        raise PlanError("this graph was not made by lcprune.trace, so it cannot be cut")
    units = _units(graph, kept)
    keeps = structure.keeps(units)
    natural = structure.natural and (structure.single or min(map(len, units), default=2) > 1)
    try:
        order = structure.natural_order(keeps) if natural else structure.order(units)
    except TrialError as error:
        raise PlanError(f"this selection cannot be cut: {error}") from error
    counts = np.array([len(own) for own in units], dtype=np.int64)
    return Plan(
        kept={group.name: tuple(own.tolist()) for group, own in zip(graph.groups, units, strict=True)},
        sizes={group.name: group.size for group in graph.groups},
        macs=round(graph.cost.macs(counts)),
        params=round(graph.cost.params(counts)),
        original_macs=graph.macs,
        original_params=graph.params,
        cuts=structure.cuts(order),
        changes=tuple(structure.changes(keeps)),
        shapes={name: tuple(tensor.shape) for name, tensor in named_tensors(structure.skeleton)},
        meta={"network": _network(graph)},
        layers={
            layer.name: dict(zip(COLUMNS, zip(whole, layer.at(counts), strict=True), strict=True))
            for layer, whole in graph.cost.layers
        },
        frozen=graph.frozen,
    )


def _network(graph: ChannelGraph) -> dict[str, Any]:
    """What is known of the network behind a plan: its class, inputs, and how to build it where a name or file did."""
    found: dict[str, Any] = {"class": type(graph.model).__name__}
    inputs = graph.example_inputs
    if all(isinstance(leaf, Tensor) for leaf in tree_leaves(inputs)):
        found["input_shape"] = shape_of(inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs)
    return found | getattr(graph.model, ORIGIN, {})


def _units(graph: ChannelGraph, kept: KeptUnits) -> list[NDArray[np.int64]]:
    if isinstance(kept, Mapping):
        names = {group.name for group in graph.groups}
        for name in kept:
            if name not in names:
                raise PlanError(f"there is no group {name!r}; graph.groups lists them")
        chosen = [kept.get(group.name, np.arange(group.size)) for group in graph.groups]
    else:
        if len(kept) != len(graph.groups):
            raise PlanError(f"{len(kept)} lists of units were given for {len(graph.groups)} groups")
        chosen = list(kept)
    units = []
    for group, own in zip(graph.groups, chosen, strict=True):
        index = np.unique(np.asarray(own, dtype=np.int64))
        if len(index) == 0:
            raise PlanError(f"group {group.name} would keep nothing; at least one unit must stay")
        if len(index) != len(np.asarray(own)):
            raise PlanError(f"group {group.name} names a unit twice")
        if index[0] < 0 or index[-1] >= group.size:
            raise PlanError(
                f"group {group.name} has units 0 to {group.size - 1}, not {index[-1] if index[0] >= 0 else index[0]}"
            )
        units.append(index)
    return units
