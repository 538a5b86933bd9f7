"""Plan + model -> physically smaller model. Applying never thinks: it only takes what the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.graph.skeleton import copy_with, resize

Cuts = Mapping[str, Mapping[int, NDArray[np.int64]]]


@dataclass(frozen=True)
class AttributeChange:
    """A number that a module keeps and that must follow the cut.

    Attributes:
        module: the module's name.
        attribute: the attribute's name.
        index: position inside a list or tuple, or None.
        old: the number before.
        new: the number after.
    """

    module: str
    attribute: str
    index: int | None
    old: int
    new: int


def cut(model: nn.Module, cuts: Cuts, changes: Sequence[AttributeChange] = ()) -> nn.Module:
    """Copy a network with fewer channels.

    Args:
        model: the network; it is not touched.
        cuts: weight name -> dimension -> kept positions, in their new order.
        changes: numbers kept by modules.

    Returns:
        The smaller network, with dtype, device, mode, `requires_grad` and memory format of the original.
    """

    def change(name: str, tensor: Tensor) -> Tensor:
        own = cuts.get(name)
        if not own:
            return tensor.clone(memory_format=torch.preserve_format)
        return resize(tensor, {dim: torch.from_numpy(index) for dim, index in own.items()})

    smaller = copy_with(model, change)
    for item in changes:
        set_number(smaller.get_submodule(item.module), item.attribute, item.index, item.new)
    touched = {name.rpartition(".")[0] for name in cuts} | {item.module for item in changes}
    touched |= {name.partition(".parametrizations.")[0] for name in cuts if ".parametrizations." in name}
    for name in touched:
        _refresh(smaller.get_submodule(name))
    return smaller


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
    """Bring the numbers that torch's own layers keep for printing and checking in line with their weights."""
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
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
