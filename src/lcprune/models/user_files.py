"""Functions in users' Python files, named as `file.py:factory`.

What lies beside such a file can be imported while the file is, and hides nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lcprune.errors import ModelError, first_line

_FOLDERS: list[Path] = []  # of users' files that were imported


def import_file(spec: str, error: type[Exception] = ModelError) -> tuple[Any, Any]:
    """The module and the function (or what else it is) that `file.py:factory` names.

    Args:
        spec: path of a Python file, a colon, and a function in it.
        error: what to raise when either is missing, or the file cannot be imported.
    """
    path, _, attribute = spec.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise error(f"{spec}: no file at {file}")
    name = f"lcprune_user_{file.stem}_{abs(hash(file.resolve()))}"
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, file)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # dataclasses and pickling of workers look modules up by name
        try:
            with _neighbours(file.resolve().parent):
                found.loader.exec_module(module)
        except BaseException as problem:
            del sys.modules[name]
            if isinstance(problem, Exception):
                raise error(f"{spec} cannot be imported: {_where(problem, file)}") from problem
            raise
    if not hasattr(module, attribute):
        raise error(f"{spec}: {file} has no function called {attribute!r}")
    return module, getattr(module, attribute)


def call_file(spec: str, offered: Mapping[str, Any], error: type[Exception] = ModelError) -> Any:
    """What the function that `file.py:factory` names returns.

    Args:
        spec: as for `import_file`.
        offered: arguments by name; the function gets those that it takes.
        error: what to raise when the function is missing, needs more arguments, or fails.
    """
    module, factory = import_file(spec, error)
    if not callable(factory):
        raise error(f"{spec}: {module.__file__} has no function called {spec.rpartition(':')[2]!r}")
    accepted = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    arguments = {name: value for name, value in offered.items() if takes_any or name in accepted}
    named = {name: p for name, p in accepted.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    needed = [name for name, p in named.items() if p.default is p.empty and name not in arguments]
    if needed:
        raise error(
            f"{spec} needs {', '.join(needed)}, which lcprune does not give: "
            "let them have defaults, or name a function that takes no arguments"
        )
    file = Path(module.__file__)
    try:
        with _neighbours(file.resolve().parent):
            return factory(**arguments)
    except Exception as problem:
        raise error(f"{spec} failed: {_where(problem, file)}") from problem


def _where(problem: Exception, file: Path) -> str:
    """An error of a user's file in one line: what, and the last line of that file that was running."""
    if isinstance(problem, SyntaxError):  # names the file and the line itself
        return f"SyntaxError: {first_line(problem)}"
    frames, here = traceback.extract_tb(problem.__traceback__), file.resolve()
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(problem).__name__}: {first_line(problem)}{place}"


@contextlib.contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
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
