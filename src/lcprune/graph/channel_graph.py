"""What a trace finds: groups of units, the weights that they cut, and what must stay; and plans of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lcprune.batches import Inputs, shape_of
from lcprune.copies import ORIGIN, named_tensors
from lcprune.cost import Cost
from lcprune.errors import PlanError
from lcprune.plan import Plan
from lcprune.summary import COLUMNS, plan_html

if TYPE_CHECKING:
    from lcprune.graph.structure import Structure


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one weight that a group cuts.

    Attributes:
        weight: name of the parameter or buffer.
        dim: the dimension that is cut.
        role: "out" for the filters that produce the units, "in" for the columns that consume them,
            "along" for what rides on each channel (bias, normalisation, scale).
        index: int64 (units, k), the k positions along `dim` that belong to each unit.
    """

    weight: str
    dim: int
    role: str
    index: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """Units of the same structure: the paper's "layer" for beta.

    Attributes:
        name: the first layer that produces the units.
        size: how many units there are.
        members: every weight dimension that goes with them.
    """

    name: str
    size: int
    members: tuple[Member, ...]

    def __repr__(self) -> str:
        return f"Group({self.name!r}, {self.size} units, {len(self.members)} weight dimensions)"


@dataclass(frozen=True, eq=False, repr=False)
class ChannelGraph:
    """How the channels of a network depend on one another.

    Attributes:
        model: the network that was traced, untouched.
        example_inputs: the inputs it was traced with: a tuple, or a dict of keyword arguments.
        groups: what can be pruned, in network order.
        cost: MACs and parameters as functions of kept counts.
        frozen: layer or weight name -> why it cannot be pruned.
        mixing: names of groups for which zeroing a unit is not the same as removing it.
        norms: convolution or linear layer -> the batch norm that alone reads what it gives.
        unread: parameters that the network does not read on these inputs; they stay as they are.
        ignore: what must not shrink, as `lcprune.trace` was told.
        structure: what surgery needs to know; not for users.
    """

    model: nn.Module
    example_inputs: Inputs
    groups: tuple[Group, ...]
    cost: Cost
    frozen: Mapping[str, str] = field(default_factory=dict)
    mixing: frozenset[str] = frozenset()
    norms: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    structure: Structure | None = None

    def __repr__(self) -> str:
        units = sum(group.size for group in self.groups)
        return (
            f"ChannelGraph({type(self.model).__name__}: {self.macs:,} MACs, {self.params:,} parameters, "
            f"{len(self.groups)} groups with {units:,} units, {len(self.frozen)} frozen; summary() has the layers)"
        )

    def _repr_html_(self) -> str:
        return plan_html(self.plan({}))

    def summary(self) -> str:
        """What every layer has, and what cannot be cut and why, as text: the table that plans of this graph have."""
        return self.plan({}).summary()

    def plan(self, kept: Mapping[str, Any] | Sequence[Any]) -> Plan:
        """The plan that keeps these units.

        Args:
            kept: group name -> kept unit indices (a group that is not named stays whole), or one list of indices
                per group in the order of `groups`.

        Raises:
            PlanError: if a name or an index is wrong, or a group would keep nothing.
        """
        if self.structure is None:
            raise PlanError("this graph was not made by lcprune.trace, so it cannot be cut")
        units = _units(self.groups, kept)
        cuts, changes = self.structure.surgery(units)
        counts = np.array([len(own) for own in units], dtype=np.int64)
        return Plan(
            kept={group.name: tuple(own.tolist()) for group, own in zip(self.groups, units, strict=True)},
            sizes={group.name: group.size for group in self.groups},
            macs=round(self.cost.macs(counts)),
            params=round(self.cost.params(counts)),
            original_macs=self.macs,
            original_params=self.params,
            cuts=cuts,
            changes=changes,
            shapes={name: tuple(tensor.shape) for name, tensor in named_tensors(self.structure.skeleton)},
            meta={"network": self._network()},
            layers={
                layer.name: dict(zip(COLUMNS, zip(whole, layer.at(counts), strict=True), strict=True))
                for layer, whole in self.cost.layers
            },
            frozen=self.frozen,
        )

    def _network(self) -> dict[str, Any]:
        """What a plan says of its network: its class, inputs, and how to build it where a name or file did."""
        found: dict[str, Any] = {"class": type(self.model).__name__}
        inputs = self.example_inputs
        if all(isinstance(leaf, Tensor) for leaf in tree_leaves(inputs)):
            found["input_shape"] = shape_of(inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs)
        return found | getattr(self.model, ORIGIN, {})

    def explain(self) -> str:
        """Groups, what is coupled with what, and what is frozen and why, as text."""
        units = sum(group.size for group in self.groups)
        lines = [
            f"{type(self.model).__name__}: {self.macs:,} MACs, {self.params:,} parameters, "
            f"{len(self.groups)} groups with {units:,} units that can go"
        ]
        for group in self.groups:
            lines += [f"{group.name}: {group.size} units", *_members(group)]
            if group.name in self.mixing:
                lines.append(
                    "  its channels influence one another (normalisation over channels): zeroing is not removing"
                )
        if self.frozen:
            lines += ["frozen:", *(f"  {name}: {reason}" for name, reason in self.frozen.items())]
        if self.unread:
            lines.append(f"never read, so left as they are: {', '.join(self.unread)}")
        return "\n".join(lines)

    @property
    def macs(self) -> int:
        """Convolution and linear multiply-adds of the whole network for one sample."""
        return round(self.cost.macs(self.cost.sizes))

    @property
    def params(self) -> int:
        """Number of parameters of the whole network."""
        return round(self.cost.params(self.cost.sizes))


def _members(group: Group) -> Iterator[str]:
    for role, verb in (("out", "filters of"), ("along", "along with"), ("in", "read by")):
        members = []
        for member in group.members:
            if member.role == role:
                times = member.index.shape[1]
                members.append(f"{member.weight}[{member.dim}]" + (f" ({times} each)" if times > 1 else ""))
        if members:
            yield f"  {verb} {', '.join(members)}"


def _units(groups: Sequence[Group], kept: Mapping[str, Any] | Sequence[Any]) -> list[NDArray[np.int64]]:
    """The units that stay, checked, of each group."""
    if isinstance(kept, Mapping):
        names = {group.name for group in groups}
        for name in kept:
            if name not in names:
                raise PlanError(f"there is no group {name!r}; graph.groups lists them")
        chosen = [kept.get(group.name, np.arange(group.size)) for group in groups]
    else:
        if len(kept) != len(groups):
            raise PlanError(f"{len(kept)} lists of units were given for {len(groups)} groups")
        chosen = list(kept)
    units = []
    for group, own in zip(groups, chosen, strict=True):
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
