"""One folder per job: its configuration, environment, log and records, and going on from it.

    with RunFolder.create("runs/first", "prune", {"model": "resnet20", "macs": 0.5}) as run:
        run.add("results", {"network": "lcp 50 %", "accuracy": 0.93})

The folder can be read by people (`config.toml`, `log.txt`), by `lcprune.load` (`plan.json`,
`model.safetensors`) and by `lcprune report` (`records/`). `config.toml` can be given to `--config` again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lcprune.errors import ConfigError
from lcprune.files import atomic_write, dump_toml, on_this_machine, read_toml, write_json
from lcprune.version import VERSION

logger = logging.getLogger("lcprune")

CONFIG, ENVIRONMENT, LOG, RECORDS = "config.toml", "environment.json", "log.txt", "records"
NETWORKS, PLAN, WEIGHTS, NETWORK = "networks", "plan.json", "model.safetensors", "network.json"

Row = dict[str, Any]  # of the records

# What the last line of a log begins with.
_DONE, _STOPPED = "done", "stopped by"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C inside a run; carries the folder from which to go on."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class RunFolder:
    """The folder of one job. Make one with `create`, `resume` or `open`.

    Attributes:
        command: what made it, e.g. "prune".
        settings: the resolved configuration, as in `config.toml`: plain values, and sections of them.
    """

    def __init__(self, path: str | os.PathLike[str], command: str, settings: Mapping[str, Any]) -> None:
        self.path, self.command, self.settings = on_this_machine(path), command, dict(settings)
        self._handler: logging.Handler | None = None

    @property
    def writes(self) -> bool:
        """Whether this process writes the folder: under torchrun only the first one does."""
        return os.environ.get("RANK", "0") == "0"

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], command: str, settings: Mapping[str, Any], force: bool = False
    ) -> RunFolder:
        """Start a new folder; `force` replaces an existing run folder. Anything else in the way is never removed."""
        run = cls(path, command, settings)
        if not run.writes:
            return run
        folder = run.path
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file; choose another folder with --out")
        if folder.exists() and any(folder.iterdir()):
            if not (folder / CONFIG).is_file():
                kept = f"(no {CONFIG})" + (", so --force does not replace it" if force else "")
                raise ConfigError(
                    f"{folder} is not empty and not a run folder {kept}; choose another folder with --out"
                )
            if not force:
                raise ConfigError(
                    f"{folder} exists already: go on from it with --resume, replace it with --force, "
                    "or choose another folder with --out"
                )
            shutil.rmtree(folder)
        try:
            with atomic_write(folder / CONFIG) as temporary:
                temporary.write_text(dump_toml({"command": command, **run.settings}), encoding="utf-8")
            write_json(folder / ENVIRONMENT, environment())
        except OSError as error:
            if error.errno == errno.ENOSPC:  # told in words of its own
                raise
            raise ConfigError(
                f"{folder} cannot be written ({error.strerror}); choose another folder with --out"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str], command: str | None = None) -> RunFolder:
        """Read an existing folder; a ConfigError if lcprune, or the command if one is given, did not write it."""
        run = cls(path, "?", {})
        if not run.path.is_dir():
            raise ConfigError(f"there is no run folder {run.path}")
        if not run.file(CONFIG).is_file():
            raise ConfigError(f"{run.path} is not a run folder: it has no {CONFIG}, and no network ({WEIGHTS}) either")
        run.settings = read_toml(run.file(CONFIG))
        run.command = str(run.settings.pop("command", "?"))
        if command not in (None, run.command):
            raise ConfigError(f"{run.path} was made by `lcprune {run.command}`, not by `lcprune {command}`")
        return run

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Read a run folder, or one with a network in it: with the settings of the run that the network belongs to."""
        folder = on_this_machine(path)
        if (folder / CONFIG).is_file() or not any((folder / name).is_file() for name in (PLAN, WEIGHTS)):
            return cls.open(path)
        beside = folder.resolve().parent
        if beside.name != NETWORKS or not (beside.parent / CONFIG).is_file():
            return cls(path, "network", {})
        run = cls.open(beside.parent)
        return cls(path, run.command, run.settings)

    @classmethod
    def resume(cls, path: str | os.PathLike[str], command: str, settings: Mapping[str, Any]) -> RunFolder:
        """Go on with a folder, which must hold the same job; a ConfigError names the first difference."""
        run = cls.open(path, command)
        wanted = json.loads(json.dumps({k: v for k, v in settings.items() if v is not None}))
        for name in sorted({*wanted, *run.settings}):
            there, now = run.settings.get(name), wanted.get(name)
            if there != now and name not in ("device", "engine", "address", "workers"):
                raise ConfigError(
                    f"{run.path} was started with {name}={there!r}, now it is {now!r}: "
                    "leave that option out to go on, or start another folder with --out"
                )
        return run

    def file(self, *parts: str) -> Path:
        """A path inside the folder."""
        return self.path.joinpath(*parts)

    @property
    def stopped(self) -> str | None:
        """How an unfinished run ended, as its log says; None if it is done, or about to be: its own report is last."""
        log = self.file(LOG)
        if self._handler is not None or not log.is_file():
            return None
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = next((line.partition(" INFO ")[2] for line in reversed(lines) if " INFO " in line), "")
        if said.startswith(_DONE):
            return None
        return said if said.startswith(_STOPPED) else "ended without a word, or still going on"

    def records(self, name: str) -> list[Row]:
        """The rows recorded under `name`; none if there are none."""
        path = self.file(RECORDS, f"{name}.json")
        if not path.is_file():
            return []
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is damaged: {error}") from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{path} is damaged: it should hold a list of records")
        return rows

    def add(self, name: str, *rows: Mapping[str, Any]) -> None:
        """Add rows to the records called `name`; the file is replaced in one step."""
        if not self.writes:
            return
        write_json(self.file(RECORDS, f"{name}.json"), [*self.records(name), *map(dict, rows)], indent=1)

    def __enter__(self) -> RunFolder:
        self._started = time.monotonic()
        if self.writes:
            self._handler = logging.FileHandler(self.file(LOG), encoding="utf-8")
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(self._handler)
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        seconds = time.monotonic() - self._started
        if self._handler is not None:
            logger.removeHandler(self._handler)
            outcome = _DONE if kind is None else f"{_STOPPED} {kind.__name__}: {value}"
            message = f"{outcome} after {seconds:.1f} s"
            # Only the file: the terminal hears of it from the command itself.
            self._handler.handle(logging.LogRecord("lcprune", logging.INFO, "", 0, message, None, None))
            self._handler.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            raise Interrupted(str(self.path)) from None


def network_folder(title: str) -> str:
    """Where a network is in its run's folder: `lcp 50 %` in `networks/lcp-50-pc`."""
    plain = "".join(c if c.isalnum() or c == "." else " " for c in title.replace("%", "pc"))
    return f"{NETWORKS}/{'-'.join(plain.split())}"


def default_folder(command: str, subject: str) -> Path:
    """A new folder's name, e.g. `runs/prune-resnet20-20260131-120000`."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(subject).name).strip("-.")
    return Path("runs") / f"{command}-{plain}-{datetime.now():%Y%m%d-%H%M%S}"


def environment() -> dict[str, Any]:
    """Versions and machine, for the record."""
    import numpy
    import torch

    return {
        "lcprune": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:],
    }
