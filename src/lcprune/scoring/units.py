"""From a number per filter to a score per unit: coupled filters add up; scores are checked before they are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph, Member

FloatArray = NDArray[np.float64]
Scores = list[FloatArray]
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


def sum_filters(graph: ChannelGraph, per_filter: Callable[[torch.Tensor], torch.Tensor]) -> Scores:
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


def sum_units(graph: ChannelGraph, values: Mapping[Key, torch.Tensor], role: str = "out") -> Scores:
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


def l2_normalised(scores: Sequence[FloatArray]) -> Scores:
    """Each group's scores divided by their Euclidean length, as the single-filter paper rescales layers."""
    return [array / (np.linalg.norm(array) or 1.0) for array in scores]


def checked(metric: str, scores: Any, graph: ChannelGraph) -> Scores:
    """The scores that a metric gave, as one float64 array per group; refused if they cannot be ranked."""
    names = [group.name for group in graph.groups]
    if isinstance(scores, Mapping):
        missing, strange = set(names) - set(scores), set(scores) - set(names)
        if missing or strange:
            wrong = f"no scores for {sorted(missing)}" if missing else f"scores for {sorted(strange)}, not groups"
            raise MetricError(f"metric {metric!r} gave {wrong}; one array per group is wanted")
        scores = [scores[name] for name in names]
    if not isinstance(scores, Sequence) or len(scores) != len(names):
        size = f"{len(scores)} arrays" if isinstance(scores, Sequence) else f"a {type(scores).__name__}"
        raise MetricError(
            f"metric {metric!r} gave {size} for {len(names)} groups; a list with one array each is wanted"
        )
    arrays = []
    for group, given in zip(graph.groups, scores, strict=True):
        array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
        if array.shape != (group.size,):
            raise MetricError(
                f"metric {metric!r} gave {group.name!r} scores of shape {array.shape}; "
                f"one per unit, ({group.size},), is wanted"
            )
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            bad = int(np.argmin(np.isfinite(array)))
            raise MetricError(
                f"metric {metric!r} gave {group.name!r} the score {array[bad]} (unit {bad}): look for NaN or "
                "overflow in the layer's weights, its activations or the loss"
            )
        arrays.append(array)
    return arrays
