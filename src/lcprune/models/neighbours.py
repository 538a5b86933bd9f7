"""What lies beside a user's file: it can be imported while the file is, and hides nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_FOLDERS: list[Path] = []  # of users' files that were imported


@contextlib.contextmanager
def neighbours(folder: Path) -> Iterator[None]:
    """Inside, modules of `folder` can be imported by name.

    Installed packages go first. Modules that other users' files brought from beside them are set aside where this
    folder has one of the same name, and come back afterwards.
    """
    own = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    aside = {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in own and _brought(module, folder)
    }
    for name in aside:
        del sys.modules[name]
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.update(aside)
        if folder not in _FOLDERS:
            _FOLDERS.append(folder)


def _brought(module: ModuleType, here: Path) -> bool:
    """Whether a module lies beside another user's file, and not here."""
    file = getattr(module, "__file__", None)
    parents = Path(file).resolve().parents if file else ()
    return here not in parents and any(folder in parents for folder in _FOLDERS)
