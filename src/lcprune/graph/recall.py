"""What operators gave before: on the same shapes and labels they give the same again.

Trial cuts replay a network many times, and a network runs the same operators in every block and time step. So a
replay works out the labels of each only once. Equal labels are one object here, which makes them quick to compare.
Shapes alone are kept for the whole process: on `meta` torch decomposes many operators into dozens of others.
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
from lcprune.graph.site import CodeSite
from lcprune.graph.values import looks_at_values

Spec = tuple[Any, Any, Any]  # shape, stride and dtype of a tensor
_MANY = 50_000  # results that are kept at once
_known: dict[Any, tuple[bool, tuple[Spec, ...]]] = {}  # whether it is one tensor, and what they look like


# Of floating-point tensors of one shape and layout these give another one, whatever the other arguments are.
_ALIKE = frozenset((
    "add", "clamp", "clamp_max", "clamp_min", "div", "elu", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "log", "mish", "mul", "neg", "relu", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "sub", "tanh",
))  # fmt: skip


def run_on_shapes(call: Call) -> Any:
    """The result of an operator; on `meta` without running it, if it is plain or ran on tensors like these before."""
    if {tensor.device.type for tensor in call.tensors} != {"meta"}:
        return call.func(*call.args, **call.kwargs)
    x, others = call.tensors[0], call.tensors[1:]
    if call.short.removesuffix("_") in _ALIKE and x.is_floating_point() and all(_spec(y) == _spec(x) for y in others):
        return x if call.inplace else torch.empty_like(x)
    if call.short == "native_batch_norm" and call.args[5] is False and len(others) >= 2:
        if all(other.shape == x.shape[1:2] for other in others):
            return torch.empty_like(x), x.new_empty(0), x.new_empty(0)
    elif call.short == "native_layer_norm":
        rank = x.ndim - len(call.args[1])
        if list(x.shape[rank:]) == list(call.args[1]) and all(other.shape == x.shape[rank:] for other in others):
            statistics = x.new_empty([*x.shape[:rank], *[1] * (x.ndim - rank)])
            return torch.empty_like(x, memory_format=torch.contiguous_format), statistics, statistics.clone()
    if not _makes_new(call.func):
        return call.func(*call.args, **call.kwargs)
    looks = (_spec(value) if isinstance(value, Tensor) else (type(value), value) for value in call.leaves)
    lengths = (len(value) if isinstance(value, (list, tuple)) else -1 for value in call.args)
    key = (call.func, torch.get_default_dtype(), *looks, *call.kwargs, *lengths)
    if key not in _known:
        out = call.func(*call.args, **call.kwargs)
        if tensors := _tensors(out):
            if len(_known) >= _MANY:
                _known.clear()
            _known[key] = isinstance(out, Tensor), tuple(map(_spec, tensors))
        return out
    single, specs = _known[key]
    made = tuple(map(_made_of, specs))
    return made[0] if single else made


@dataclass(frozen=True, eq=False)
class Result:
    """What an operator gave.

    Attributes:
        call: the operator, when it first ran.
        step: what a cut network must run at this point, if anything.
        single: it gives one tensor and not a tuple.
        tensors: what each tensor looks like.
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
        self, func: Any, args: Any, kwargs: Any, labels_of: Callable[[Tensor], Labels], site: Callable[[], CodeSite]
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
                key += (*_spec(value), id(labels))
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
        # Of what is equal all over, others may share the memory and take its values for equal.
        shared = call.inplace and (call.labels[0].uniform or not call.labels[0].layers)
        tensors = _tensors(out)
        if tensors and not shared:
            if len(self._results) >= _MANY:
                self._results.clear()
            specs = tuple(map(_spec, tensors))
            self._results[key] = Result(call, step, isinstance(out, Tensor), specs, tuple(labels), mixed)


def again(result: Result, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a result once more."""
    if result.call.inplace:
        return [args[0]]
    if _makes_new(func):
        return [_made_of(spec) for spec in result.tensors]
    out = func(*args, **kwargs)  # in the memory of its input
    return [out] if result.single else list(out)


def _tensors(out: Any) -> list[Tensor]:
    """The tensors of a result on `meta`; none if there is anything else in it."""
    tensors = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, (list, tuple)) else []
    return tensors if all(isinstance(own, Tensor) and own.device.type == "meta" for own in tensors) else []


def _spec(tensor: Tensor) -> Spec:
    return tensor.shape, tensor.stride(), tensor.dtype


def _made_of(spec: Spec) -> Tensor:
    shape, stride, dtype = spec
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _content(layer: Tensor) -> tuple[Any, bytes]:
    return layer.shape, layer.numpy().tobytes()


@cache
def _makes_new(func: Any) -> bool:
    """Whether an operator of PyTorch's own makes new tensors, and of shapes that do not depend on values."""
    schema = func._schema
    old = any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    return schema.name.startswith("aten::") and not old and not looks_at_values(func)


@cache
def _repeatable(func: Any) -> bool:
    """Whether an operator gives the same for the same and writes to no memory, other than element by element."""
    if func._schema.name == "aten::constant_pad_nd":
        return False  # it may take by position
    if _makes_new(func) or (func._schema.name.endswith("_") and torch.Tag.pointwise in func.tags):
        return True
    written = any(value.alias_info is not None and value.alias_info.is_write for value in func._schema.arguments)
    views = any(value.alias_info is not None for value in func._schema.returns)
    return func._schema.name.startswith("aten::") and views and not written
