"""Finding out whether a number that follows a cut is computed with.

An integer attribute that names a width (`self.rows` in `x.view(b, self.rows, -1)`) follows the cut. If the code
also computes with it (`x * self.rows`), the cut network would compute something else than was meant. So for one
pass such attributes are replaced by integers that carry their origin through Python's arithmetic and tell when they
are multiplied with a tensor, or turned into a plain float on the way there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from lcprune.surgery import AttributeChange

Attribute = tuple[str, str]  # module, attribute

# Where functions that are not element-wise take a value: from this argument on, or by this name.
_VALUES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("as_tensor", "new_tensor", "scalar_tensor", "tensor"), (0, "data")),
    **dict.fromkeys(("full", "full_like", "new_full"), (1, "fill_value")),
    **dict.fromkeys(("batch_norm", "group_norm", "layer_norm"), (4, "eps")),
}
_DUNDERS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}


@cache
def _elementwise(name: str) -> bool:
    """Whether a function of torch's, or an operator of a tensor's such as `__rmul__`, is element-wise."""
    plain = name.strip("_")
    if name.startswith("__"):
        plain = next((own for own in (plain, plain[1:]) if own in _DUNDERS or hasattr(torch.ops.aten, own)), plain)
        plain = _DUNDERS.get(plain, plain)
    packet = getattr(torch.ops.aten, plain, None)
    overloads = [] if packet is None else [getattr(packet, own) for own in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


class _Origin:
    """Where a number comes from, and whether anybody computed with it."""

    origin: Attribute
    used: set[Attribute]


class FollowingInt(int, _Origin):
    """An integer that follows a cut."""

    def __float__(self) -> float:
        self.used.add(self.origin)  # math.sqrt(self.width)
        return float(int(self))


class FollowingFloat(float, _Origin):
    """A number computed from one."""


def _follow(value: Any, like: _Origin) -> Any:
    if type(value) not in (int, float):
        return value
    result = FollowingInt(value) if isinstance(value, int) else FollowingFloat(value)
    result.origin, result.used = like.origin, like.used
    return result


def _plain(value: Any) -> Any:
    """Without the origin; NumPy's numbers stay what they are."""
    if isinstance(value, FollowingInt):
        return int.__index__(value)
    return float.__add__(value, 0.0) if isinstance(value, FollowingFloat) else value


def _binary(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented  # tensors answer for themselves
        left, right = _plain(self), _plain(other)
        return _follow(function(right, left) if swapped else function(left, right), self)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _kind in (FollowingInt, FollowingFloat):
        setattr(_kind, f"__{_name}__", _binary(getattr(operator, _name), swapped=False))
        setattr(_kind, f"__r{_name}__", _binary(getattr(operator, _name), swapped=True))


class Arithmetic(TorchFunctionMode):
    """Watches a pass for tensors that are computed with a following number."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[Attribute] = set()  # what was computed with

    def watched(self, changes: Iterable[AttributeChange]) -> list[AttributeChange]:
        """The same changes with integers that tell when they are computed with."""
        result = []
        for change in changes:
            number = FollowingInt(change.new)
            number.origin, number.used = (change.module, change.attribute), self.used
            result.append(replace(change, new=number))
        return result

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        values: Any = ()
        if name in _VALUES:
            first, keyword = _VALUES[name]
            values = (args[first:], kwargs.get(keyword))
        elif _elementwise(name):
            values = (args, kwargs)
        self.used |= {value.origin for value in tree_iter(values) if isinstance(value, _Origin)}
        return func(*args, **kwargs)
