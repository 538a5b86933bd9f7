"""Files: writing them so that a killed process never leaves half of one behind, TOML, and where caches are."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lcprune.errors import ConfigError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the block succeeds, remove it otherwise."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 2) -> None:
    """Write `value` as JSON, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file; a ConfigError if it is missing or not TOML."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no configuration file {path}")
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; a ValueError says where it is wrong."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib
    return tomllib.loads(text)


def dump_toml(values: Mapping[str, Any]) -> str:
    """Write plain values, flat lists, and mappings of these as sections; None is left out."""
    lines = _toml_lines({name: value for name, value in values.items() if not isinstance(value, Mapping)})
    for name, section in values.items():
        if isinstance(section, Mapping) and section:
            lines += ["", f"[{_toml_key(name)}]", *_toml_lines(section)]
    return "\n".join(lines) + "\n"


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(name)} = {_toml(value)}" for name, value in values.items() if value is not None]


def _toml_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    """A plain value is written as in JSON, but for infinity and the delete character."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(_toml_lines(value))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("None" if value is None else value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def on_this_machine(path: str | os.PathLike[str]) -> Path:
    """A folder's path; a URL is refused rather than made into a local folder of that name."""
    if "://" in str(path):
        raise ConfigError(f"{path} is not on this machine: mount that file system, and name the folder there")
    return Path(path)


def cache_folder(part: str) -> Path:
    """Where `part` of what was found out about this machine is kept: in `LCPRUNE_CACHE`, or the user's cache folder."""
    own = os.environ.get("LCPRUNE_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lcprune"
    return base / part


def _umask() -> int:
    # mkstemp makes private files; results are meant to be readable like any other file of the user.
    mask = os.umask(0)
    os.umask(mask)
    return mask
