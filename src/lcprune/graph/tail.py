"""What follows a layer in a recorded graph and can be done with it: an addition, a ReLU, each the only reader."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

Bounds = tuple[float, float]


def tail(
    layer: fx.Node, added: Callable[[fx.Node, fx.Node], fx.Node | None], bounds: Callable[[fx.Node], Bounds | None]
) -> tuple[list[fx.Node], fx.Node | None, Bounds | None]:
    """The layer with the addition and the ReLU behind it, as far as there are such; what is added; the ReLU's bounds.

    Args:
        added: (reader, what it reads) -> what it adds to that; None if it is no addition that can be joined.
        bounds: reader -> the least and the most that it lets through; None if it is no ReLU.
    """
    nodes, reader = [layer], _only_reader(layer)
    other = None if reader is None else added(reader, layer)
    if reader is not None and other is not None:
        nodes, reader = [*nodes, reader], _only_reader(reader)
    found = None if reader is None else bounds(reader)
    return nodes if reader is None or found is None else [*nodes, reader], other, found


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
