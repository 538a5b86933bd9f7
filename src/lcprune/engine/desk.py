"""What comes back from other machines: the files of tasks, kept equal while they run, and what is logged there.

Workers see neither this machine's disk nor its terminal. They hand both in at a desk: an actor that is pinned to this
machine. So a task that is run again elsewhere finds its checkpoint, and log lines appear in the process that leads.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write

logger = logging.getLogger("lcprune")

# File systems stamp files with a clock that ticks this coarsely, at worst.
_TICK_NS = 20_000_000


class Desk:
    """The actor; a restarted one finds all files where they were."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str, str]] = []

    def take(self, file: str, content: bytes) -> None:
        """Write a file."""
        _write(Path(file), content)

    def give(self, folder: str) -> dict[str, bytes]:
        """All files under a folder, by their names relative to it."""
        return {name: file.read_bytes() for name, file in _files(Path(folder))}

    def say(self, level: int, speaker: str, message: str) -> None:
        """Keep a log line."""
        self.said.append((level, speaker, message))

    def hear(self) -> list[tuple[int, str, str]]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said


def open_desk() -> Any:
    """The handle of a desk on this machine; it travels to tasks."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind: Any = ray.remote(Desk)
    return kind.options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1).remote()


@contextlib.contextmanager
def speaking(desk: Any, name: str) -> Iterator[None]:
    """In a worker: hand in lcprune's log lines, with a name and where that is."""
    handler = _LogSender(desk, f"{name}, {whereabouts()}")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _LogSender(logging.Handler):
    def __init__(self, desk: Any, speaker: str) -> None:
        super().__init__()
        self.desk, self.speaker = desk, speaker

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # nobody listens any more: the work matters more
            self.desk.say.remote(record.levelno, self.speaker, record.getMessage())


@functools.cache
def whereabouts() -> str:
    """The machine and process that this is, e.g. `10.0.0.5, pid 1234`."""
    import ray

    return f"{ray.util.get_node_ip_address()}, pid {os.getpid()}"


@dataclass(frozen=True, eq=False)
class DeskFolder:
    """A folder on the desk's machine; travels to tasks."""

    desk: Any
    path: Path

    def at(self, part: str) -> DeskFolder:
        """A folder inside."""
        return DeskFolder(self.desk, self.path / part)

    def fetch(self, folder: Path) -> None:
        """Write all that it holds into a local folder."""
        for name, content in wait_for(self.desk.give.remote(str(self.path))).items():
            _write(folder / name, content)

    def send(self, name: str, file: Path) -> None:
        """Write a file into it; whole or not at all."""
        wait_for(self.desk.take.remote(str(self.path / name), file.read_bytes()))


class Mirror:
    """Fills a folder here from another one, and then keeps that one equal to it.

    What changed is sent every few seconds and at the end, oldest change first, so that the other side always holds a
    state that the folder was in: whoever goes on from it loses seconds, never consistency.
    """

    def __init__(self, folder: Path, other: DeskFolder, seconds: float = 3.0) -> None:
        self.folder, self.other, self.seconds = folder, other, seconds
        self._sent: dict[str, tuple[int, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Mirror:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.other.fetch(self.folder)
        self._sent = {name: _stamp(file) for name, file in _files(self.folder)}
        self._thread.start()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        time.sleep(_TICK_NS / 1e9)
        self.send()

    def send(self) -> None:
        """Send what changed since the last time."""
        now = time.time_ns() - _TICK_NS
        changed = []
        for name, file in _files(self.folder):
            with contextlib.suppress(FileNotFoundError):
                stamp = _stamp(file)
                # A file that changes during the look may be newer than one seen before it: it waits for the next look.
                if stamp != self._sent.get(name) and stamp[0] <= now:
                    changed.append((stamp, name, file))
        for stamp, name, file in sorted(changed):
            with contextlib.suppress(FileNotFoundError):
                # It was written again while others were sent: it may speak of files that were not.
                if _stamp(file) != stamp:
                    break
                self.other.send(name, file)
                self._sent[name] = stamp

    def _watch(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                self.send()
            except Exception as error:  # the last attempt, at the end, is the one that raises
                logger.warning("%s could not be sent yet: %s", self.folder, error)


def wait_for(reference: Any) -> Any:
    """What a reference stands for, fetched in a thread of its own.

    While the main thread of a task waits, Ray gives its cores to the next task, and starts a process for it.
    """
    import ray

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ray.get, reference).result()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of all files under a folder, but those that are being written."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            yield file.relative_to(folder).as_posix(), file


def _write(file: Path, content: bytes) -> None:
    with atomic_write(file) as temporary:
        temporary.write_bytes(content)


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
