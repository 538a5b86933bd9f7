"""Where and how the work of one call is done."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lcprune.engine import Engine
from lcprune.files import on_this_machine


@dataclass(frozen=True, eq=False)
class Job:
    """What `run=` of `prune`, `prune_in_steps` and `pareto` can say; a folder alone means `Job(folder)`.

    Attributes:
        folder: for the network, the search's records, what was measured, and each round of Algorithm 1; None keeps
            nothing.
        resume: go on from what is in the folder.
        engine: "local", "ray" (candidates are judged on every GPU or core of the cluster, or of this machine), or
            one from `lcprune.engine`.
        networks: the networks are saved in the folder, too; every command takes them.
    """

    folder: str | os.PathLike[str] | None = None
    resume: bool = False
    engine: str | Engine = "local"
    networks: bool = True

    def __post_init__(self) -> None:
        if self.folder is not None:
            on_this_machine(self.folder)

    @classmethod
    def of(cls, run: Job | str | os.PathLike[str] | None) -> Job:
        """What `run=` means."""
        return run if isinstance(run, cls) else cls(run)  # type: ignore[arg-type]
