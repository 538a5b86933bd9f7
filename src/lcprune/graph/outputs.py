"""What a network returns, as a flat list of named leaves: every tensor, array and number in it, however deep."""

from __future__ import annotations

import functools
import logging
import numbers
import pathlib
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.errors import TraceError

Leaf = tuple[str, Any]

# Values in which no tensor can hide.
_PLAIN = (
    *(str, bytes, bool, complex, range, slice, type, Enum, pathlib.PurePath, logging.Logger, nn.Module),
    *(types.NoneType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
    *(functools.partial, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
)


def leaves(out: Any) -> list[Leaf]:
    """Every tensor, array and number of an output with the path to it, in a fixed order.

    Containers, dataclasses and plain objects are walked. Iterators are used up, so this runs while the network's
    operators are being watched.

    Raises:
        TraceError: something is returned in which tensors could hide.
    """
    return list(_walk(out, "output", ()))


def tensors(found: list[Leaf]) -> list[Tensor]:
    """The tensors among the leaves."""
    return [value for _, value in found if isinstance(value, Tensor)]


def signature(found: list[Leaf]) -> list[tuple[str, Any]]:
    """What a cut must not change: where the leaves are, the shapes of tensors and the values of whole numbers.

    Numbers that a network reads out of its data are not among them: on shapes alone it cannot do that.
    """
    on_shapes = any(value.device.type == "meta" for value in tensors(found))
    result: list[tuple[str, Any]] = []
    for path, value in found:
        if isinstance(value, (Tensor, np.ndarray)):
            result.append((path, tuple(value.shape)))
        elif on_shapes and isinstance(value, numbers.Integral):
            result.append((path, int(value)))
    return result


def _walk(value: Any, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    if isinstance(value, _PLAIN) or id(value) in above:
        return
    if isinstance(value, (Tensor, np.ndarray, numbers.Real)):
        yield path, value
        return
    above = (*above, id(value))
    for name, entry in _entries(value, path):
        yield from _walk(entry, f"{path}{name}", above)


def _entries(value: Any, path: str) -> list[tuple[str, Any]]:
    """What a container or an object holds, with the piece of path that leads there."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, (Collection, Iterator)):
        return [(f"[{position}]", entry) for position, entry in enumerate(value)]
    names = dict.fromkeys(vars(value)) if hasattr(value, "__dict__") else {}
    if is_dataclass(value):
        names |= dict.fromkeys(field.name for field in fields(value))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names |= dict.fromkeys([slots] if isinstance(slots, str) else slots)
    names = {name: None for name in names if name not in ("__dict__", "__weakref__")}
    if not names and type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        return []  # an object without attributes
    if not names:
        raise TraceError(
            f"{path} is a {type(value).__name__}, in which tensors could hide: let the network return tensors, "
            "numbers, or containers, dataclasses and plain objects of them"
        )
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]
