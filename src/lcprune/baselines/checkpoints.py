"""Where a method that takes long goes on from: a file of weights and a little JSON in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lcprune.errors import ConfigError
from lcprune.task import Task
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place

SECONDS = 20.0  # least time between two writes of the same file


class Checkpoint:
    """One file of a task's folder; without a folder nothing is kept.

    Args:
        name: of the file.
        settings: what must be the same when the task goes on, beside what the task itself says.

    Raises:
        ConfigError: there is such a file, and the task is not one to go on with.
    """

    def __init__(self, task: Task, name: str, settings: Mapping[str, Any]) -> None:
        self.path = None if task.records is None else task.records.with_name(f"{name}.safetensors")
        if self.path is None:
            return
        self.identity = task.config(**settings)
        if self.path.exists() and not task.resume:
            raise ConfigError(f"{self.path} exists already; pass resume=True to go on from it, or name another folder")
        self.written = time.monotonic()

    def load(self, model: nn.Module, extra: Mapping[str, Tensor] | None = None) -> tuple[int, list[Any]]:
        """Read weights and `extra` into live tensors.

        Returns:
            How many rounds were done, and what was noted about them; (0, []) if there is no file.
        """
        if self.path is None or not self.path.exists():
            return 0, []
        place = checkpoint.load(self.path, model, extra or {}, self.identity)
        return place.epoch, place.history

    def save(
        self,
        model: nn.Module,
        extra: Mapping[str, Tensor] | None,
        done: int,
        notes: list[Any] | None = None,
        last: bool = False,
    ) -> None:
        """Write the file, if it is the last time or the last time is long ago."""
        if self.path is None or not (last or time.monotonic() - self.written >= SECONDS):
            return
        checkpoint.save(self.path, model, extra or {}, Place(done, history=notes or []), self.identity)
        self.written = time.monotonic()
