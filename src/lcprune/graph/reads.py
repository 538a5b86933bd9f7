"""Which attributes of modules the network's code reads.

An integer that is never read cannot be the reason for a failure, and PyTorch tells nobody of reads. So modules of the
skeleton take a class of ours while a pass runs, and get their own back. Code that asks for a module's exact type would
see it; code of others that runs where classes are made is spared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


@contextlib.contextmanager
def reads(modules: Mapping[str, nn.Module]) -> Iterator[set[tuple[str, str]]]:
    """Which attributes of these modules are read, by the module's name and theirs.

    Modules take a class that listens. Where making a class runs code of others, all attributes count as read.
    """
    found: set[tuple[str, str]] = set()
    kinds = [(module, type(module)) for module in modules.values()]
    try:
        for name, module in modules.items():
            kind = type(module)
            if type(kind) is type and not any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1]):
                module.__class__ = _listening(name, kind, found)
            else:
                found.update((name, attribute) for attribute in vars(module))
        yield found
    finally:
        for module, kind in kinds:
            module.__class__ = kind


def _listening(name: str, kind: type[nn.Module], found: set[tuple[str, str]]) -> type[nn.Module]:
    def look(self: nn.Module, attribute: str) -> Any:
        found.add((name, attribute))
        return kind.__getattribute__(self, attribute)

    return type(kind.__name__, (kind,), {"__getattribute__": look, "__module__": kind.__module__})
