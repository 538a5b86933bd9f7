"""Files that tasks write on other machines come back to this one while they run.

Workers cannot see this machine's disk. What a task writes goes through Ray to a desk: an actor that is pinned to this
machine and puts it into the run folder. So a task that is run again elsewhere finds its checkpoint.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write


class Desk:
    """The actor; a restarted one finds everything where it was."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def take(self, name: str, content: bytes) -> None:
        """Put a file into the folder."""
        with atomic_write(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def give(self, prefix: str) -> dict[str, bytes]:
        """All files under a folder, by their names relative to it."""
        start = self.folder / prefix
        files = [file for file in start.rglob("*") if file.is_file() and not file.name.startswith(".")]
        return {file.relative_to(start).as_posix(): file.read_bytes() for file in files}


@dataclass(frozen=True, eq=False)
class DeskStore:
    """One folder of a desk, as a `Store`; travels to tasks.

    Attributes:
        desk: handle of the actor.
        prefix: the folder, relative to the desk's.
    """

    desk: Any
    prefix: str = ""

    def at(self, prefix: str) -> DeskStore:
        """A folder inside."""
        return DeskStore(self.desk, f"{self.prefix}/{prefix}".strip("/"))

    def fetch(self, folder: Path) -> None:
        """Write all that it holds into a local folder."""
        for name, content in wait_for(self.desk.give.remote(self.prefix)).items():
            with atomic_write(folder / name) as temporary:
                temporary.write_bytes(content)

    def send(self, name: str, file: Path) -> None:
        """Take a file."""
        wait_for(self.desk.take.remote(f"{self.prefix}/{name}".strip("/"), file.read_bytes()))


def wait_for(reference: Any) -> Any:
    """What a reference stands for, fetched in a thread of its own.

    While the main thread of a task waits, Ray gives its cores to the next task, and starts a process for it.
    """
    import ray

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ray.get, reference).result()
