"""Metrics of a run as JSON lines, and for TensorBoard where it is installed."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write

logger = logging.getLogger("lcprune")


class MetricsLog:
    """One record per epoch in `metrics.jsonl`, and the same numbers as TensorBoard scalars.

    Args:
        run_dir: where to write; None writes nothing.
        history: records that exist already: the file is made to hold exactly these, since a killed run may
            have written one that its checkpoint does not know.
    """

    def __init__(self, run_dir: Path | None, history: Sequence[dict[str, Any]] = ()) -> None:
        self.file = None if run_dir is None else run_dir / "metrics.jsonl"
        self.board: Any = None
        if run_dir is None or self.file is None:
            return
        with atomic_write(self.file) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in history), encoding="utf-8")
        self.board = _tensorboard(run_dir / "tensorboard", purge=len(history) + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Append one epoch's record."""
        if self.file is None:
            return
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)) and name != "epoch":
                    self.board.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        """Let TensorBoard write what it holds."""
        if self.board is not None:
            self.board.close()


def _tensorboard(folder: Path, purge: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # not installed: the JSON lines hold the same
    except Exception as error:  # installed, but its own dependencies do not fit together
        logger.warning("nothing is written for TensorBoard, whose import fails: %s", error)
        return None
    return SummaryWriter(str(folder), purge_step=purge)  # type: ignore[no-untyped-call]
