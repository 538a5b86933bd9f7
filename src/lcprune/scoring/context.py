"""What a metric may use beside the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Context:
    """What a metric may use beside the graph.

    Attributes:
        data: batches of (input, target), read once; an input is a tensor, or a tuple or dict of them.
        loss_fn: (output, target) -> mean loss of the batch.
        seed: for metrics that draw.
        progress: whether to show a bar.
    """

    data: Iterable[Any] | None = None
    loss_fn: Callable[[Any, Any], torch.Tensor] = torch.nn.functional.cross_entropy
    seed: int = 0
    progress: bool = False
