"""A folder of a task that is kept equal to one on another machine's disk.

Work goes on in the local folder. What changed is sent every few seconds and at the end, oldest change first, so that
the other side always holds a state that the folder was in: whoever goes on from it loses seconds, never consistency.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Protocol

logger = logging.getLogger("lcprune")

_SECONDS = 3.0
# File systems stamp files with a clock that ticks this coarsely, at worst.
_TICK_NS = 20_000_000


class Store(Protocol):
    """The other side."""

    def fetch(self, folder: Path) -> None:
        """Write all that it holds into a local folder."""

    def send(self, name: str, file: Path) -> None:
        """Take a file under a name relative to the folder; whole or not at all."""


class Mirror:
    """Keeps a store equal to a local folder while it is entered.

    Args:
        folder: on this machine; made if it does not exist.
        store: the other side.
        seconds: between looks for changes.
    """

    def __init__(self, folder: Path, store: Store, seconds: float = _SECONDS) -> None:
        self.folder, self.store, self.seconds = folder, store, seconds
        self._sent: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Mirror:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        time.sleep(_TICK_NS / 1e9)
        self.send()

    def fetch(self) -> None:
        """Fill the folder from the store."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store.fetch(self.folder)
        self._sent = {name: stamp for name, stamp, _ in self._files()}

    def send(self) -> None:
        """Send what changed since the last time."""
        with self._lock:
            now = time.time_ns() - _TICK_NS
            # A file that changes during the look may be newer than one seen before it: it waits for the next look.
            changed = [entry for entry in self._files() if entry[1] != self._sent.get(entry[0]) and entry[1][0] <= now]
            for name, stamp, file in sorted(changed, key=lambda entry: entry[1]):
                with contextlib.suppress(FileNotFoundError):
                    # It was written again while others were sent: it may speak of files that were not.
                    if _stamp(file) != stamp:
                        break
                    self.store.send(name, file)
                    self._sent[name] = stamp

    def _files(self) -> list[tuple[str, tuple[int, int], Path]]:
        found = []
        for file in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file() and not file.name.startswith("."):  # a dot: being written
                    name = file.relative_to(self.folder).as_posix()
                    found.append((name, _stamp(file), file))
        return found

    def _watch(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                self.send()
            except Exception as error:  # the last attempt, at the end, is the one that raises
                logger.warning("%s could not be sent yet: %s", self.folder, error)


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
