"""Reading TOML, and writing the little of it that a configuration needs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lcprune.errors import ConfigError


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: it is missing or not TOML.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no configuration file {path}")
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; a ValueError says where it is wrong."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib
    return tomllib.loads(text)


def dump_toml(values: Mapping[str, Any]) -> str:
    """Write plain values and one level of sections; None is left out.

    Args:
        values: strings, numbers, booleans, flat lists, and mappings of these.
    """
    lines = [f"{_key(k)} = {_value(v)}" for k, v in values.items() if v is not None and not _is_section(v)]
    for name, section in values.items():
        if _is_section(section) and section:
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in section.items() if v is not None]
    return "\n".join(lines) + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return _string(str(value))


def _string(text: str) -> str:
    # TOML's basic strings are JSON's, but for the delete character and for pairs of surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
