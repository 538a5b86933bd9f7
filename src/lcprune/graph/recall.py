"""What operators gave before: on the same shapes and labels they give the same again.

Trial cuts replay a network many times, and a network runs the same operators in every block and time step. So a
replay works out the labels of each only once. Equal labels are one object here, which makes them quick to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lcprune.graph.labels import Labels
from lcprune.graph.rules import Call, Step
from lcprune.graph.rules.movement import takes
from lcprune.graph.shapes import Spec, made_of, makes_new, spec
from lcprune.graph.site import Site

_MANY = 50_000  # results that are kept at once


@dataclass(frozen=True, eq=False)
class Result:
    """What an operator gave.

    Attributes:
        call: the operator, when it first ran.
        step: what a cut network must run at this point, if anything.
        single: it gives one tensor and not a tuple.
        tensors: shape, stride and dtype of each tensor.
        labels: their labels.
        mixed: channels that influenced one another, as sums (see `Pairs`).
    """

    call: Call
    step: Step | None
    single: bool
    tensors: tuple[Spec, ...]
    labels: tuple[Labels | None, ...]
    mixed: list[NDArray[np.int64]]


class Recall:
    """Results of operators on `meta`, by operator, arguments and labels."""

    def __init__(self) -> None:
        self._labels: dict[Any, Labels] = {}
        self._results: dict[Any, Result] = {}

    def one(self, labels: Labels) -> Labels:
        """The one object that stands for equal labels."""
        taken = tuple((part.site, _content(part.whole), _content(part.part)) for part in labels.taken)
        key = (tuple(map(_content, labels.layers)), labels.uniform, labels.weight, labels.constant, taken)
        return self._labels.setdefault(key, labels)

    def key(
        self, func: Any, args: Any, kwargs: Any, labels_of: Callable[[Tensor], Labels], site: Callable[[], Site]
    ) -> Any:
        """What an operator's result depends on; None if that cannot be told, or memory is written to."""
        if not _repeatable(func):
            return None
        key: list[Any] = [func]
        if takes(func._schema.name):
            key.append(site())
        return tuple(key) if self._append(key, (*args, *kwargs.items()), labels_of) and len(key) > 1 else None

    def _append(self, key: list[Any], values: Any, labels_of: Callable[[Tensor], Labels]) -> bool:
        for value in values:
            if isinstance(value, Tensor):
                labels = labels_of(value)
                if labels.places or value.device.type != "meta":
                    return False
                key += (value.shape, value.stride(), value.dtype, id(labels))
            elif isinstance(value, (list, tuple)):
                key.append(len(value))
                if not self._append(key, value, labels_of):
                    return False
            else:
                key += (type(value), value)
        return True

    def get(self, key: Any) -> Result | None:
        """The result, if it is known."""
        return self._results.get(key)

    def add(
        self,
        key: Any,
        call: Call,
        step: Step | None,
        out: Any,
        labels: list[Labels | None],
        mixed: list[NDArray[np.int64]],
    ) -> None:
        """Remember a result."""
        tensors = [out] if isinstance(out, Tensor) else list(out)
        if not all(isinstance(tensor, Tensor) and tensor.device.type == "meta" for tensor in tensors):
            return
        if len(self._results) >= _MANY:
            self._results.clear()
        if call.inplace and (call.labels[0].uniform or not call.labels[0].layers):
            return  # others may share the memory and take its values for equal
        self._results[key] = Result(
            call, step, isinstance(out, Tensor), tuple(map(spec, tensors)), tuple(labels), mixed
        )


def _content(layer: Tensor) -> tuple[Any, bytes]:
    return layer.shape, layer.numpy().tobytes()


def again(result: Result, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a result once more."""
    if result.call.inplace:
        return [args[0]]
    if makes_new(func):
        return [made_of(own) for own in result.tensors]
    out = func(*args, **kwargs)  # in the memory of its input
    return [out] if result.single else list(out)


@cache
def _repeatable(func: Any) -> bool:
    """Whether an operator gives the same for the same and writes to no memory, other than element by element."""
    if func._schema.name == "aten::constant_pad_nd":
        return False  # it may take by position
    if makes_new(func) or (func._schema.name.endswith("_") and torch.Tag.pointwise in func.tags):
        return True
    written = any(value.alias_info is not None and value.alias_info.is_write for value in func._schema.arguments)
    views = any(value.alias_info is not None for value in func._schema.returns)
    return func._schema.name.startswith("aten::") and views and not written
