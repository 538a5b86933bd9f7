"""Copies of a network to run on labels, and watching over the original meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from lcprune.batches import Inputs
from lcprune.copies import copy_with, named_tensors
from lcprune.errors import TraceError


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

    def change(name: str, tensor: Tensor) -> Tensor:
        if real:
            return tensor.to("cpu", copy=True)
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    return copy_with(model, change).eval()


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


def inputs_to(args: Inputs, device: str) -> Inputs:
    """Example inputs on another device; on `meta`, without their data."""
    moved: Inputs = tree_map_only(Tensor, lambda tensor: tensor.detach().to(device), args)
    return moved
