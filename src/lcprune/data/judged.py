"""By what networks are judged on data: the loss, and the score that is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lcprune.score import ACCURACY, LOSS, Score


class Judged:
    """What every kind of data says of its task.

    Attributes:
        loss_fn: `loss_fn(output, target)`, a mean over the batch; None is cross-entropy.
        score: by what networks are compared, if somebody has said it.
    """

    loss_fn: Callable[[Any, Any], Any] | None
    score: Score | None

    @property
    def compared_by(self) -> Score:
        """The score: what was said, the loss that was said, or accuracy."""
        return self.score or (ACCURACY if self.loss_fn is None else LOSS)
