"""One progress bar for everything that takes long: rich on a terminal, silence elsewhere; and what is said once.

with Progress("search", total=400, enabled=True) as bar:
    bar.advance(best="0.132", naive="0.410")
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from typing import Any

logger = logging.getLogger("lcprune")

_SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """A bar with what matters beside it; off a terminal, an occasional log line. Neither unless it is enabled."""

    def __init__(self, title: str, total: int | None = None, enabled: bool = True) -> None:
        self.title, self.total, self.enabled = title, total, enabled
        self.done = 0
        self._bar: Any = None
        self._task: Any = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        if self.enabled and sys.stderr.isatty():
            self._bar = _rich_bar()
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, info="")
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.enabled and kind is None and self.done:
            logger.info("%s: %s steps in %.1f s", self.title, self.done, time.monotonic() - self._started)

    def advance(self, steps: int = 1, **shown: Any) -> None:
        """Move on by `steps` and show `shown` as `name value` pairs."""
        self.done += steps
        info = "  ".join(f"{name} {value}" for name, value in shown.items())
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, info=info)
        elif self.enabled and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            logger.info("%s %s/%s  %s", self.title, self.done, self.total or "?", info)


@functools.cache
def say_once(text: str) -> None:
    """A warning that one process gives once."""
    logger.warning("%s", text)


def _rich_bar() -> Any:
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.table import Column

    out = Console(stderr=True)
    bar = 40 if out.width >= 120 else 6  # what is beside it matters more
    beside = Column(no_wrap=True, overflow="ellipsis", max_width=max(20, out.width - bar - 40))
    return rich_progress.Progress(
        rich_progress.TextColumn("[bold]{task.description}"),
        rich_progress.BarColumn(bar),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[info]}", table_column=beside),
        console=out,
    )
