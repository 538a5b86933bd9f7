"""Operators on `meta`, without what torch does there: it decomposes many of them into dozens of others."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lcprune.graph.rules import Call

Spec = tuple[Any, Any, Any]  # shape, stride and dtype of a tensor
_MANY = 20_000  # results that are kept at once
_known: dict[Any, tuple[bool, tuple[Spec, ...]]] = {}  # whether it is one tensor, and what they look like

# Of floating-point tensors of one shape and layout these give another one, whatever the other arguments are.
_ALIKE = frozenset(
    (
        *(
            "add",
            "clamp",
            "clamp_max",
            "clamp_min",
            "div",
            "elu",
            "exp",
            "gelu",
            "hardsigmoid",
            "hardswish",
            "hardtanh",
        ),
        *("leaky_relu", "log", "mish", "mul", "neg", "relu", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "sub"),
        "tanh",
    )
)


def run_on_shapes(call: Call) -> Any:
    """The result of an operator on tensors without data."""
    x, name = call.tensors[0], call.name.removeprefix("aten::")
    if name.removesuffix("_") in _ALIKE and _alike(call.tensors):
        return x if call.inplace else torch.empty_like(x)
    if name == "native_batch_norm" and call.args[5] is False and len(call.tensors) >= 3:
        if all(tensor.shape == x.shape[1:2] for tensor in call.tensors[1:]):
            return torch.empty_like(x), x.new_empty(0), x.new_empty(0)
    elif name == "native_layer_norm":
        count = len(call.args[1])
        fits = list(x.shape[x.ndim - count :]) == list(call.args[1])
        if fits and all(tensor.shape == x.shape[x.ndim - count :] for tensor in call.tensors[1:]):
            statistics = x.new_empty([*x.shape[: x.ndim - count], *[1] * count])
            return torch.empty_like(x, memory_format=torch.contiguous_format), statistics, statistics.clone()
    if not makes_new(call.func) or any(tensor.device.type != "meta" for tensor in call.tensors):
        return call.func(*call.args, **call.kwargs)
    key = (call.func, *(_look(value) for value in call.leaves), *call.kwargs, *map(_length, call.args))
    if key not in _known:
        out = call.func(*call.args, **call.kwargs)
        tensors = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, (list, tuple)) else []
        if tensors and all(isinstance(tensor, Tensor) and tensor.device.type == "meta" for tensor in tensors):
            if len(_known) >= _MANY:
                _known.clear()
            _known[key] = isinstance(out, Tensor), tuple(spec(tensor) for tensor in tensors)
        return out
    single, specs = _known[key]
    made = [made_of(own) for own in specs]
    return made[0] if single else tuple(made)


def spec(tensor: Tensor) -> Spec:
    """What a tensor looks like."""
    return tensor.shape, tensor.stride(), tensor.dtype


def made_of(own: Spec) -> Tensor:
    """A tensor without data that looks like this."""
    return torch.empty_strided(own[0], own[1], dtype=own[2], device="meta")


@cache
def makes_new(func: Any) -> bool:
    """Whether an operator of PyTorch's own makes new tensors, and of shapes that do not depend on values."""
    schema = func._schema
    old = any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    looks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
    return schema.name.startswith("aten::") and not old and not looks


def _alike(tensors: list[Tensor]) -> bool:
    first = tensors[0]
    if not first.is_floating_point():
        return False
    return all(spec(tensor) == spec(first) and tensor.device == first.device for tensor in tensors[1:])


def _look(value: Any) -> Any:
    return spec(value) if isinstance(value, Tensor) else (type(value), value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else -1
