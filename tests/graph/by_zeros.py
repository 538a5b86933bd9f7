"""The oracle for layers that torch runs whole (attention, recurrence), where stains cannot be followed.

There a channel whose rows and biases are zero is zero itself, and adds nothing: heads and states of zeros stay zero.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import oracle
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Inputs = tuple[Tensor, ...]


def silenced_outputs(model: nn.Module, inputs: Inputs, graph: Any, kept: oracle.Kept) -> list[Tensor]:
    """As in the oracle; by zeros where the network says so."""
    if not hasattr(model, "by_zeros"):
        return oracle.silenced_outputs(model, inputs, graph, kept)
    model = copy.deepcopy(model)
    tensors, owners = dict(model.named_parameters()), dict(model.named_modules())
    for group in graph.groups:
        gone = np.setdiff1d(np.arange(group.size), np.asarray(kept.get(group.name, range(group.size))))
        for member in group.members:
            rows = torch.as_tensor(member.index[gone].reshape(-1))
            if member.role != "in":
                tensors[member.weight].data.index_fill_(member.dim, rows, 0.0)
        for member in group.members:
            attention = owners[member.weight.rpartition(".")[0]]
            if isinstance(attention, nn.MultiheadAttention) and member.dim == 0 and member.weight.endswith("_weight"):
                _rescale(attention, len(kept.get(group.name, range(group.size))) / group.size)
                break
    with torch.no_grad():
        return tree_leaves(model(*inputs))


def _rescale(attention: nn.MultiheadAttention, share: float) -> None:
    """Attention divides by the root of its heads' width, which is smaller in the pruned network."""
    packed = attention.in_proj_weight
    queries = attention.q_proj_weight.data if packed is None else packed.data[: attention.embed_dim]
    queries /= share**0.5
    attention.in_proj_bias.data[: attention.embed_dim] /= share**0.5


class _Counter(TorchDispatchMode):
    macs = written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in ("convolution", "mm", "addmm"):
            inner = args[1][0].numel() if name == "convolution" else args[-1].shape[0]
            self.macs += out.numel() * inner
            self.written += out.numel()
        return out


def _counted(model: nn.Module, inputs: Inputs) -> _Counter:
    # In double precision and with the fast path off, torch has no kernels for recurrence and attention as a whole.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), _Counter() as counter:
        copy.deepcopy(model).double()(*tree_map(Tensor.double, inputs))
    torch.backends.mha.set_fastpath_enabled(fast)
    return counter


def counted_macs(model: nn.Module, inputs: Inputs, *more: Any) -> float:
    """Multiply-adds of one sample."""
    if hasattr(model, "by_zeros"):
        return _counted(model, inputs).macs / len(inputs[0])
    return oracle.counted_macs(model, inputs, *more)


def counted_activations(model: nn.Module, inputs: Inputs, *more: Any) -> float:
    """Elements that layers write for one sample."""
    if hasattr(model, "by_zeros"):
        return _counted(model, inputs).written / len(inputs[0])
    return oracle.counted_activations(model, inputs, *more)
