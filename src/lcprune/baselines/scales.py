"""Batch-norm scales of units: what slimming and MorphNet shrink, and rank by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.select import Kept
from lcprune.task import Task

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales along each group's channels.

    Attributes:
        groups: per group, (scale, positions (units, k)) of every norm along its channels; empty if there is none.
    """

    groups: list[list[tuple[Tensor, Tensor]]]

    @property
    def all(self) -> list[Tensor]:
        """Every scale once."""
        return list({id(scale): scale for parts in self.groups for scale, _ in parts}.values())

    @property
    def bare(self) -> NDArray[np.bool_]:
        """(groups,) which have no scale; these stay whole."""
        return np.array([not parts for parts in self.groups])

    def largest(self, group: int) -> Tensor:
        """(units,) the largest |scale| of each unit: it is off when all of its coupled channels are."""
        parts = [scale.abs()[index].amax(1) for scale, index in self.groups[group]]
        return torch.stack(parts).amax(0)

    def numbers(self) -> list[NDArray[np.float64]]:
        """(units,) per group, the largest |scale| of each unit; empty where there is no scale."""
        with torch.no_grad():
            return [
                self.largest(group).double().cpu().numpy() if parts else np.array([])
                for group, parts in enumerate(self.groups)
            ]


def scales_of(graph: ChannelGraph, model: nn.Module, method: str) -> Scales:
    """The scales of a network with the graph's structure.

    Raises:
        MetricError: not one group has a normalisation with a scale.
    """
    modules = dict(model.named_modules())
    groups: list[list[tuple[Tensor, Tensor]]] = []
    for group in graph.groups:
        parts = []
        for member in group.members:
            owner, _, leaf = member.weight.rpartition(".")
            if member.role == "along" and leaf == "weight" and isinstance(modules[owner], _NORMS):
                scale = modules[owner].get_parameter(leaf)
                parts.append((scale, torch.as_tensor(member.index, device=scale.device)))
        groups.append(parts)
    if not any(groups):
        raise MetricError(f"method {method!r} shrinks batch-norm scales, and no group of this network has any")
    return Scales(groups)


def select_scales(task: Task, scales: Scales) -> Kept:
    """The lowest scales of the whole network go until the limits hold; groups without a scale stay whole."""
    sizes = task.graph.cost.sizes
    filled = [np.ones(size) if array.size == 0 else array for array, size in zip(scales.numbers(), sizes, strict=True)]
    return task.rank(filled, np.where(scales.bare, sizes, task.rank(filled).floors)).select(task.limits)
