"""Plan + model -> physically smaller model. Applying never thinks: it only takes what the plan says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from lcprune.copies import copy_with, named_tensors

Cuts = Mapping[str, Mapping[int, NDArray[np.int64]]]  # weight -> dimension -> kept positions, in their new order


@dataclass(frozen=True)
class AttributeChange:
    """A number that a module keeps and that must follow the cut."""

    module: str
    attribute: str
    index: int | None  # position inside a list or tuple
    old: int
    new: int


def cut(model: nn.Module, cuts: Cuts, changes: Sequence[AttributeChange]) -> nn.Module:
    """A copy with fewer channels, with dtype, device, mode, `requires_grad` and memory format of the original."""
    smaller = copy_with(model, lambda name, tensor: _resized(tensor, cuts.get(name, {})))
    _follow(dict(smaller.named_modules(remove_duplicate=False)), cuts, changes)
    return smaller


@contextlib.contextmanager
def cut_in_place(model: nn.Module, cuts: Cuts, changes: Sequence[AttributeChange]) -> Iterator[None]:
    """Cut a network for the length of a block, then put everything back: for trials, where a copy is too slow."""
    modules = dict(model.named_modules(remove_duplicate=False))
    places: dict[int, list[tuple[nn.Module, str, str]]] = {}
    for module in dict.fromkeys(modules.values()):
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(module, kind).items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((module, kind, key))
    tensors = {name: tensor for name, tensor in named_tensors(model) if name in cuts}
    touched = {module for tensor in tensors.values() for module, _, _ in places[id(tensor)]}
    touched |= {modules[name] for name in _touched(cuts, changes)}
    saved = [(module, dict(vars(module)), dict(module._parameters), dict(module._buffers)) for module in touched]
    try:
        for name, tensor in tensors.items():
            new = _resized(tensor.detach(), cuts[name])
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=False)
            for module, kind, key in places[id(tensor)]:
                getattr(module, kind)[key] = new
        _follow(modules, cuts, changes)
        yield
    finally:
        for module, attributes, parameters, buffers in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._parameters.update(parameters)
            module._buffers.update(buffers)


def _resized(tensor: Tensor, cuts: Mapping[int, NDArray[np.int64]]) -> Tensor:
    """A new tensor with only these positions along these dimensions, in the given order; memory format kept."""
    if not cuts:
        return tensor.clone(memory_format=torch.preserve_format)
    if tensor.device.type == "meta":
        shape = [len(cuts[dim]) if dim in cuts else length for dim, length in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    for dim, index in cuts.items():
        tensor = tensor.index_select(dim, torch.from_numpy(index).to(tensor.device))
    return tensor.contiguous(memory_format=torch.channels_last) if last else tensor


def _follow(modules: Mapping[str, nn.Module], cuts: Cuts, changes: Sequence[AttributeChange]) -> None:
    """Bring the numbers that the modules of a cut network keep in line with its weights."""
    for item in changes:
        set_number(modules[item.module], item.attribute, item.index, item.new)
    for name in _touched(cuts, changes):
        _refresh(modules[name])


def _touched(cuts: Cuts, changes: Sequence[AttributeChange]) -> set[str]:
    owners = {name.rpartition(".")[0] for name in cuts} | {item.module for item in changes}
    return owners | {name.partition(".parametrizations.")[0] for name in cuts if ".parametrizations." in name}


def set_number(module: nn.Module, attribute: str, index: int | None, value: int) -> None:
    """Set an integer attribute, or one entry of a list or tuple of integers."""
    if index is None:
        setattr(module, attribute, value)
        return
    entries: Any = getattr(module, attribute)
    changed = list(entries)
    changed[index] = value
    setattr(module, attribute, type(entries)(changed) if type(entries) in (list, tuple, torch.Size) else changed)


def _refresh(module: nn.Module) -> None:
    """Bring what torch's own layers keep in line with their weights: computed weights, numbers for printing."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, BasePruningMethod)):
            with torch.no_grad():
                hook(module, None)
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvNd) and isinstance(weight, Tensor):
        outer, inner = weight.shape[:2]
        if module.transposed:
            module.in_channels, module.out_channels = outer, inner * module.groups
        else:
            module.in_channels, module.out_channels = inner * module.groups, outer
    elif isinstance(module, nn.Linear) and isinstance(weight, Tensor):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        vector = weight if isinstance(weight, Tensor) else module.running_mean
        if isinstance(vector, Tensor):
            module.num_features = vector.numel()
    elif isinstance(module, nn.GroupNorm) and isinstance(weight, Tensor):
        module.num_channels = weight.numel()
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and isinstance(weight, Tensor):
        module.normalized_shape = tuple(weight.shape)
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        suffix = "_l0" if isinstance(module, nn.RNNBase) else ""
        module.input_size = getattr(module, f"weight_ih{suffix}").shape[1]
        module.hidden_size = getattr(module, f"weight_hh{suffix}").shape[1]
        if getattr(module, "proj_size", 0):
            module.proj_size, module.hidden_size = cast(Tensor, module.weight_hr_l0).shape
    elif isinstance(module, nn.MultiheadAttention):
        query = module.in_proj_weight if module._qkv_same_embed_dim else module.q_proj_weight
        module.embed_dim = module.kdim = module.vdim = query.shape[1]
        if not module._qkv_same_embed_dim:
            module.kdim, module.vdim = module.k_proj_weight.shape[1], module.v_proj_weight.shape[1]
        module.head_dim = module.embed_dim // max(module.num_heads, 1)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
