"""Integers that modules keep, and which of them code reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


def integers(module: nn.Module) -> Iterator[tuple[str, int | None, int]]:
    """Integer attributes of a module, and integers in its lists and tuples."""
    for name, value in vars(module).items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield name, None, value
        elif isinstance(value, (list, tuple)) and 0 < len(value) <= 16:
            for index, entry in enumerate(value):
                if isinstance(entry, int) and not isinstance(entry, bool) and entry > 1:
                    yield name, index, entry


@contextlib.contextmanager
def reads(modules: Mapping[str, nn.Module]) -> Iterator[set[tuple[str, str]]]:
    """Which attributes of these modules are read, by the module's name and theirs."""
    found: set[tuple[str, str]] = set()
    kinds = [(module, type(module)) for module in modules.values()]
    try:
        for name, module in modules.items():
            module.__class__ = _listening(name, type(module), found)
        yield found
    finally:
        for module, kind in kinds:
            module.__class__ = kind


def _listening(name: str, kind: type[nn.Module], found: set[tuple[str, str]]) -> type[nn.Module]:
    def look(self: nn.Module, attribute: str) -> Any:
        found.add((name, attribute))
        return kind.__getattribute__(self, attribute)

    return type(kind.__name__, (kind,), {"__getattribute__": look, "__module__": kind.__module__})
