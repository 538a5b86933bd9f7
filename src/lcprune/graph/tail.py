"""What follows a layer in a recorded graph and can be done with it: an addition, a ReLU, each the only reader.

What follows a layer is found in three places, from three sources: the trace records norms (`discover.py`), graphs that
are rewritten need nodes that can be run (here), and a repair looks at real numbers without a graph
(`repairs/watch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

Bounds = tuple[float, float]  # the least and the most that a ReLU or a clamp lets through

_ATEN = torch.ops.aten
_RELUS = {_ATEN.relu.default, _ATEN.relu_.default}
_HARDTANHS = {_ATEN.hardtanh.default, _ATEN.hardtanh_.default}
_CLAMPS = {_ATEN.clamp.default, _ATEN.clamp_.default, *_HARDTANHS}


def tail(
    layer: fx.Node, added: Callable[[fx.Node, fx.Node], fx.Node | None], through: Callable[[fx.Node], Bounds | None]
) -> tuple[list[fx.Node], fx.Node | None, Bounds | None]:
    """The layer with the addition and the ReLU behind it, as far as there are such; what is added; the ReLU's bounds.

    Args:
        added: (reader, what it reads) -> what it adds to that; None if it is no addition that can be joined.
        through: reader -> the least and the most that it lets through; None if it is no ReLU.
    """
    nodes, reader = [layer], _only_reader(layer)
    other = None if reader is None else added(reader, layer)
    if reader is not None and other is not None:
        nodes, reader = [*nodes, reader], _only_reader(reader)
    found = None if reader is None else through(reader)
    return nodes if reader is None or found is None else [*nodes, reader], other, found


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def bounds(func: Any, args: Sequence[Any]) -> Bounds | None:
    """The least and the most that an operator of PyTorch's core lets through, if it does nothing else."""
    if func in _RELUS:
        return 0.0, math.inf
    if func not in _CLAMPS:
        return None
    unsaid = [-1, 1] if func in _HARDTANHS else [None, None]
    said: list[Any] = [*args[1:], *unsaid[len(args) - 1 :]]
    low, high = said
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)
