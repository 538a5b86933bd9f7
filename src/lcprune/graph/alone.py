"""A replay where one channel is left on an axis, which cannot be told from an axis that is broadcast."""

from __future__ import annotations

from typing import Any

from lcprune.graph.label_pass import LabelPass
from lcprune.graph.replay import Replay


class Alone(Replay):
    """Run a cut network on shapes, and check what it takes by position; not who meets, nor which operators run.

    Args:
        args: as for `Replay`, with a `Recall` of its own.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._on_shapes = False  # no steps are counted

    meet, mix, tie, step = LabelPass.meet, LabelPass.mix, LabelPass.tie, LabelPass.step
