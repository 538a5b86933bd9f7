"""Copies of a network with other tensors: what tracing, surgery and tuning have in common."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from lcprune.errors import TraceError

# Attribute of a network that `models.build` or `load` made: how to build it again, as plain JSON. Plans say it, too.
ORIGIN = "_lcprune_origin"

P = ParamSpec("P")
R = TypeVar("R")


def trainable(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose tensors can be trained, even if it is called inside `torch.inference_mode`."""

    @functools.wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return outside


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once, under the first of its names."""
    modules = list(model.named_modules())  # once for both: in large networks this is what takes time
    for kind in ("_parameters", "_buffers"):
        seen: set[int] = set()
        for prefix, module in modules:
            for name, tensor in getattr(module, kind).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{name}" if prefix else name, tensor


def copy_of(model: nn.Module) -> nn.Module:
    """Another one with the same numbers; unlike `copy.deepcopy`, also of a network that computes weights in hooks."""
    return copy_with(model, lambda name, tensor: tensor.clone())


def copy_to_run(model: nn.Module) -> nn.Module:
    """Another one with the same numbers, in evaluation mode: whatever a forward pass writes stays in it."""
    return copy_of(model).eval()


def _has_gradients(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside `DataParallel`, `DistributedDataParallel` and `torch.compile`."""
    while True:
        parallel = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = model.module if parallel else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def copy_with(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy whose tensors are what `change` makes of each name and tensor: they are never copied first."""
    memo: dict[int, Any] = {}
    for name, tensor in named_tensors(model):
        new = change(name, tensor.detach())
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad and _has_gradients(new))
        memo[id(tensor)] = new
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # what a hook computes before every pass
                memo[id(value)] = value.detach().clone()
            elif type(value) is OrderedDict and not value:  # hooks, mostly; deepcopy takes long over these
                memo[id(value)] = OrderedDict()
    try:
        result = copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied ({error}); remove hooks, locks or computed tensors that it "
            "keeps as attributes and try again"
        ) from error
    for name, module in model.named_modules():  # torch.fx forgets the mode
        result.get_submodule(name).training = module.training
    return result
