"""Scores of every unit, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph

Scores = list[NDArray[np.float64]]


def l2_normalised(scores: Sequence[NDArray[np.float64]]) -> Scores:
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
