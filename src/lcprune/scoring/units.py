"""From a number per filter to a score per unit: coupled filters add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph, Member

FloatArray = NDArray[np.float64]
Key = tuple[str, int]  # a weight and the dimension along which its filters lie


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision where the device has it, so that sums do not depend on their order."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def rows(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """A weight as (positions along `dim`, the rest): a row per filter, or per slice of the next layer."""
    return tensor.movedim(dim, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]


def owner_of(graph: ChannelGraph, name: str) -> nn.Module:
    """The module that holds the parameter or buffer of that name."""
    return graph.model.get_submodule(name.rpartition(".")[0])


def tensor_of(graph: ChannelGraph, name: str) -> torch.Tensor:
    """The parameter or buffer of that name."""
    found: torch.Tensor = getattr(owner_of(graph, name), name.rpartition(".")[2])
    return found


def members(graph: ChannelGraph, role: str = "out") -> dict[Key, list[str]]:
    """Every weight dimension that plays a role -> the names of the groups that cut it."""
    found: dict[Key, list[str]] = {}
    for group in graph.groups:
        for member in group.members:
            if member.role == role:
                found.setdefault((member.weight, member.dim), []).append(group.name)
    return found


def sum_filters(graph: ChannelGraph, per_filter: Callable[[torch.Tensor], torch.Tensor]) -> list[FloatArray]:
    """Scores of a metric that looks at one weight at a time.

    Args:
        graph: the traced network.
        per_filter: (filters, elements) in double precision -> (filters,).

    Returns:
        Per group and unit, the sum over the unit's filters.
    """
    with torch.no_grad():
        values = {key: per_filter(rows(wide(tensor_of(graph, key[0])), key[1])) for key in members(graph)}
    return sum_units(graph, values)


def sum_units(graph: ChannelGraph, values: Mapping[Key, torch.Tensor], role: str = "out") -> list[FloatArray]:
    """Per group and unit, the sum over the unit's positions in every weight of that role.

    Args:
        graph: the traced network.
        values: (weight, dim) -> one number per position along the dimension.
        role: "out" for filters, "in" for slices of the next layers, "along" for what rides on the channels.
            Weights that `values` lacks count nothing.
    """
    arrays = {key: value.detach().double().cpu().numpy() for key, value in values.items()}
    scores = []
    for group in graph.groups:
        total = np.zeros(group.size)
        parts = [m for m in group.members if m.role == role]
        if role == "out" and not parts:
            raise MetricError(f"group {group.name!r} has no filters to score; ignore it in trace()")
        for member in parts:
            if (member.weight, member.dim) in arrays:
                total += _gathered(arrays[member.weight, member.dim], member)
        scores.append(total)
    return scores


def _gathered(values: FloatArray, member: Member) -> FloatArray:
    # A position that several channels of one unit share (grouped convolutions) counts once.
    index = np.sort(member.index, axis=1)
    fresh = np.ones(index.shape, dtype=bool)
    fresh[:, 1:] = index[:, 1:] != index[:, :-1]
    gathered: FloatArray = np.where(fresh, values[index], 0.0).sum(axis=1)
    return gathered
