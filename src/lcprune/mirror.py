"""A folder on this machine that is kept equal to one elsewhere: any fsspec path, or another machine's disk.

Work goes on in the local folder. What changed is sent every few seconds and at the end, oldest change first, so that
the other side always holds a state that the folder was in: whoever goes on from it loses seconds, never consistency.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from lcprune.errors import ConfigError, MirrorError, MissingDependencyError

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
        rescue: the folder is a passing one: if it cannot be sent at the end, leave a copy of it.
    """

    def __init__(self, folder: Path, store: Store, seconds: float = _SECONDS, rescue: bool = False) -> None:
        self.folder, self.store, self.seconds, self.rescue = folder, store, seconds, rescue
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        time.sleep(_TICK_NS / 1e9)
        try:
            self.send()
        except Exception as error:
            if not self.rescue:
                raise
            copy = shutil.copytree(self.folder, tempfile.mkdtemp(prefix="lcprune-unsent-"), dirs_exist_ok=True)
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MirrorError(
                f"{getattr(self.store, 'url', 'the run folder')} could not be written: {line}; all of it is in {copy}: "
                "copy that there to go on with --resume"
            ) from error

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
                logger.warning("%s could not be sent yet: %s", getattr(self.store, "url", self.folder), error)


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size


class UrlStore:
    """A folder on any file system that fsspec knows: `s3://bucket/run`, `gs://...`, `memory://...`.

    Args:
        url: of the folder.

    Raises:
        ConfigError: no file system of that kind is known.
        MissingDependencyError: it needs a package that is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise MissingDependencyError(f"{url} needs fsspec, which comes with PyTorch: pip install fsspec") from None
        self.url = url.rstrip("/")
        try:
            self.files, self.root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            raise MissingDependencyError(f"{url}: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from None

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file, or anything at all."""
        return bool(self.files.exists(f"{self.root}/{name}" if name else self.root))

    def names(self) -> list[str]:
        """All files, relative to the folder."""
        self.files.invalidate_cache()
        start = len(self.root.rstrip("/")) + 1
        return [path[start:] for path in self.files.find(self.root)]

    def fetch(self, folder: Path) -> None:
        """Write all files into a local folder."""
        for name in self.names():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.files.get_file(f"{self.root}/{name}", str(target))

    def send(self, name: str, file: Path) -> None:
        """Write one file."""
        target = f"{self.root}/{name}"
        self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
        # Object stores replace a file in one step; a file system that does not gets it under another name first.
        aside = f"{target.rpartition('/')[0]}/.{file.name}.part"
        if _in_one_step(self.files):
            self.files.put_file(str(file), target)
        else:
            self.files.put_file(str(file), aside)
            self.files.mv(aside, target)

    def remove(self) -> None:
        """Remove everything."""
        if self.exists():
            self.files.rm(self.root, recursive=True)


@contextlib.contextmanager
def local_folder(path: str | os.PathLike[str] | None) -> Iterator[Path | None]:
    """The folder itself, if it is on this machine; otherwise one that is, kept equal to it."""
    if path is None or not is_url(path):
        yield None if path is None else Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="lcprune-") as temporary:
        mirror = Mirror(Path(temporary), UrlStore(str(path)), rescue=True)
        mirror.fetch()
        with mirror:
            yield mirror.folder


def is_url(path: Any) -> bool:
    """Whether a path names a file system of fsspec's rather than a place on this machine."""
    return "://" in str(path)


def _in_one_step(files: Any) -> bool:
    protocols: Sequence[str] = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return bool({"s3", "gs", "gcs", "abfs", "az", "memory"} & set(protocols))
