"""Reaching units in a network that keeps its full size: their weights, and the scales of the norms along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.plan import Plan
from lcprune.select import Kept
from lcprune.task import Task

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)


def zero_units(graph: ChannelGraph, model: nn.Module, kept: Kept, roles: Sequence[str] = ("out", "along")) -> None:
    """Set the weights of all other units to zero, in place.

    With filters ("out") and what rides on them ("along": bias, norm), a unit gives zero to its readers wherever what
    lies between keeps zero at zero. Statistics of norms stay.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group, units in zip(graph.groups, kept, strict=True):
        gone = np.setdiff1d(np.arange(group.size), units)
        for member in group.members if len(gone) else ():
            if member.role in roles and member.weight in parameters:
                weight = parameters[member.weight].detach()
                index = torch.as_tensor(member.index[gone].reshape(-1), device=weight.device)
                weight.index_fill_(member.dim, index, 0)


@torch.no_grad()
def put_back(model: nn.Module, smaller: nn.Module, plan: Plan) -> None:
    """Write the weights of a cut network back into the full-size one, in place: the inverse of `plan.apply`.

    Weights of units that the plan removes stay what they were.
    """
    full = model.state_dict()
    for name, value in smaller.state_dict().items():
        cuts = plan.cuts.get(name, {})
        index = (cuts.get(dim, np.arange(size)) for dim, size in enumerate(full[name].shape))
        full[name][tuple(torch.from_numpy(own).to(value.device) for own in np.ix_(*index))] = value


@dataclass(frozen=True, eq=False)
class Scales:
    """The batch-norm scales that slimming and MorphNet shrink, and rank by.

    Attributes:
        groups: per group, (scale, positions (units, k)) of every norm along its channels; empty if there is none.
    """

    groups: list[list[tuple[Tensor, Tensor]]]

    @classmethod
    def of(cls, graph: ChannelGraph, model: nn.Module, method: str) -> Scales:
        """Those of a network with the graph's structure.

        Raises:
            MetricError: not one group has a normalisation with a scale.
        """
        modules = dict(model.named_modules())
        groups: list[list[tuple[Tensor, Tensor]]] = []
        for group in graph.groups:
            groups.append([])
            for member in group.members:
                owner, _, leaf = member.weight.rpartition(".")
                if member.role == "along" and leaf == "weight" and isinstance(modules[owner], _NORMS):
                    scale = modules[owner].get_parameter(leaf)
                    groups[-1].append((scale, torch.as_tensor(member.index, device=scale.device)))
        if not any(groups):
            raise MetricError(f"method {method!r} shrinks batch-norm scales, and no group of this network has any")
        return cls(groups)

    @property
    def all(self) -> list[Tensor]:
        """Every scale once."""
        return list({id(scale): scale for parts in self.groups for scale, _ in parts}.values())

    def largest(self, group: int) -> Tensor:
        """(units,) the largest |scale| of each unit: it is off when all of its coupled channels are."""
        return torch.stack([scale.abs()[index].amax(1) for scale, index in self.groups[group]]).amax(0)

    @torch.no_grad()
    def numbers(self) -> list[NDArray[np.float64]]:
        """(units,) per group, the largest |scale| of each unit; empty where there is no scale."""
        return [
            self.largest(group).double().cpu().numpy() if parts else np.array([])
            for group, parts in enumerate(self.groups)
        ]

    def select(self, task: Task) -> Kept:
        """The lowest scales of the whole network go until the limits hold; groups without a scale stay whole."""
        sizes = task.graph.cost.sizes
        numbers = [own if own.size else np.ones(size) for own, size in zip(self.numbers(), sizes, strict=True)]
        floors = np.where([not parts for parts in self.groups], sizes, 0 if task.floors is None else task.floors)
        return task.rank(numbers, floors).select(task.limits)
