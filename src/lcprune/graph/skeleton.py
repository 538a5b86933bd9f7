"""Copies of a network without its data, and cut copies with or without."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from lcprune.errors import TraceError
from lcprune.graph.run import named_tensors


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside `DataParallel`, `DistributedDataParallel` and `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module) and isinstance(
            model, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def copy_with(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Copy a network with other tensors: each parameter and buffer is replaced while copying, never copied first.

    Args:
        model: the network; it is not touched.
        change: gives the new tensor for a name and the old one.
    """
    memo: dict[int, Any] = {}
    for name, tensor in named_tensors(model):
        new = change(name, tensor.detach())
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad and new.is_floating_point())
        memo[id(tensor)] = new
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # what a hook computes before every pass
                memo[id(value)] = value.detach().clone()
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


def skeleton(model: nn.Module, real: bool = False) -> nn.Module:
    """A copy in evaluation mode, on `meta`, or with its data on the CPU if `real`."""
    for name, tensor in named_tensors(model):
        if is_lazy(tensor):
            raise TraceError(f"{name} has no shape yet: run the network once on real data before tracing it")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{name or 'the network'} is scripted, so it cannot be cut: pass the Python module it was made from"
            )
    if real:
        result = copy_with(model, lambda name, tensor: tensor.to("cpu", copy=True))
    else:
        result = copy_with(model, lambda name, tensor: _empty(tensor))
    return result.eval()


def set_mode(model: nn.Module, training: bool) -> None:
    """Evaluation mode, or training mode in which dropout and batch norm still compute as in evaluation."""
    model.train(training)
    for module in model.modules():
        if isinstance(module, (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)):
            module.eval()


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Watch over a network while copies of it run: hooks and closures of a copy may hold on to the original.

    Attributes that were set are put back.

    Raises:
        TraceError: a parameter or buffer was written to.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    versions = {name: _version(tensor) for name, tensor in named_tensors(model)}
    try:
        yield
    finally:
        for module, before in attributes:
            now = vars(module)
            if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
                now.clear()
                now.update(before)
    written = [name for name, tensor in named_tensors(model) if _version(tensor) != versions[name]]
    if written:
        raise TraceError(
            f"{written[0]} of the network was written to while a copy of it ran: a hook or a closure holds on to the "
            "original; remove it, prune, and register it again"
        )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def inputs_to(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Example inputs on another device; on `meta`, without their data."""
    moved: tuple[Any, ...] = tree_map_only(Tensor, lambda tensor: tensor.detach().to(device), args)
    return moved


def resize(tensor: Tensor, cuts: Mapping[int, Tensor]) -> Tensor:
    """The tensor with only some positions along some dimensions, in the given order; memory format kept."""
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    plain = tensor.is_contiguous()
    if tensor.device.type == "meta":
        shape = [len(cuts[dim]) if dim in cuts else length for dim, length in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")
    for dim, index in cuts.items():
        tensor = tensor.index_select(dim, index.to(tensor.device))
    if channels_last and not plain:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor
