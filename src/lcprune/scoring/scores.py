"""Scores of every unit, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.context import Context
from lcprune.scoring.registry import Metric, get

Scores = list[NDArray[np.float64]]


def score(
    graph: ChannelGraph,
    metric: str | Metric | Callable[..., Any] = "l2",
    data: Iterable[Any] | None = None,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Scores:
    """How much each unit matters.

    Args:
        graph: a traced network; left as it was, with no gradients, hooks or changed modes.
        metric: a name out of `names()`, or a function `graph -> scores` or `(graph, context) -> scores`.
        data: batches of (input, target), read once and moved to the network's device; needed by data-driven
            metrics.
        loss_fn: (output, target) -> mean loss over the batch; cross entropy if None.
        seed: for metrics that draw.
        progress: show a bar while data is read.

    Returns:
        One float64 array (units,) per group, in the order of `graph.groups`.

    Raises:
        MetricError: unknown metric, missing data, or scores that cannot be ranked.
    """
    if isinstance(metric, str):
        found = get(metric)
    elif isinstance(metric, Metric):
        found = metric
    elif callable(metric):
        found = Metric(getattr(metric, "__name__", type(metric).__name__), metric)
    else:
        raise MetricError(f"metric={metric!r} is neither a name nor a function; lcprune.metrics.names() lists names")
    if found.needs_data and data is None:
        raise MetricError(f"metric {found.name!r} needs data: pass data=, an iterable of (input, target) batches")
    context = Context(data, loss_fn or torch.nn.functional.cross_entropy, seed, progress)
    scores = found.function(graph, context) if found.takes_context else found.function(graph)
    return _checked(found.name, scores, graph)


def l2_normalised(scores: Sequence[NDArray[np.float64]]) -> Scores:
    """Each group's scores divided by their Euclidean length, as the single-filter paper rescales layers."""
    return [array / (np.linalg.norm(array) or 1.0) for array in scores]


def _checked(metric: str, scores: Any, graph: ChannelGraph) -> Scores:
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
    checked = []
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
        checked.append(array)
    return checked
