"""One flag per unit, wired to every weight that reads the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import PlanError

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph


class Switchboard:
    """Turns units of a network on and off in place.

    All weights that consume units are moved into one buffer, so that writing a selection is one gather of
    flags and one product, whatever the number of layers; nothing is allocated and no address ever changes.

    Args:
        graph: says which columns read which units.
        model: a copy of the graph's network (folded or not), which this object changes from now on.
        channels_last: store four-dimensional weights in that memory format.
    """

    def __init__(self, graph: ChannelGraph, model: nn.Module, channels_last: bool = False) -> None:
        self.units = int(sum(group.size for group in graph.groups))
        parameters = dict(model.named_parameters(remove_duplicate=False))
        readers = read_positions(graph, model)
        dtypes = {parameters[name].dtype for name in readers}
        if len(dtypes) > 1:
            raise PlanError(f"weights of several types ({', '.join(map(str, dtypes))}) cannot be switched together")
        device = next(model.parameters()).device
        dtype = dtypes.pop() if dtypes else torch.float32
        originals, flags = [], []
        for name, (dim, unit) in readers.items():
            weight = parameters[name].detach()
            shape = [1] * weight.ndim
            shape[dim] = -1
            flag = torch.as_tensor(unit, dtype=torch.int32).view(shape).expand(weight.shape)
            originals.append(_flat(weight, channels_last))
            flags.append(_flat(flag, channels_last).to(device))
        empty = torch.empty(0, dtype=dtype, device=device)
        self._original = torch.cat([empty, *originals])
        self._flag_of = torch.cat([empty.to(torch.int32), *flags])
        self._written = self._original.clone()
        self._factor = torch.empty_like(self._original)
        # The last flag is never switched off: it belongs to columns that no group can remove.
        self.flags = torch.ones(self.units + 1, dtype=dtype, device=device)
        self._host = torch.ones(self.units + 1, dtype=dtype, pin_memory=device.type == "cuda")
        self._move(parameters, readers, channels_last)

    def set(self, mask: NDArray[np.bool_]) -> None:
        """Choose which units are on; takes effect with the next `write`.

        Args:
            mask: (units,) flags, groups one after another.
        """
        self._host[:-1] = torch.from_numpy(mask)
        self.flags.copy_(self._host, non_blocking=True)

    def write(self) -> None:
        """Write the chosen units into the weights: fixed addresses and shapes, so it can be captured."""
        if self._original.numel():
            torch.index_select(self.flags, 0, self._flag_of, out=self._factor)
            torch.mul(self._original, self._factor, out=self._written)

    def _move(self, parameters: dict[str, Any], readers: dict[str, Any], channels_last: bool) -> None:
        start = 0
        for name in readers:
            parameter = parameters[name]
            part = self._written[start : start + parameter.numel()]
            start += parameter.numel()
            if channels_last and parameter.ndim == 4:
                out, inner, height, width = parameter.shape
                parameter.data = part.view(out, height, width, inner).permute(0, 3, 1, 2)
            else:
                parameter.data = part.view(parameter.shape)


def read_positions(graph: ChannelGraph, model: nn.Module) -> dict[str, tuple[int, NDArray[np.int64]]]:
    """For each weight that consumes units: the dimension, and the unit at each position along it.

    Units are numbered group after group; positions that no group can remove have the number after them.

    Raises:
        PlanError: a position belongs to several units.
    """
    starts = np.concatenate([[0], np.cumsum([group.size for group in graph.groups])]).astype(np.int64)
    always_on = int(starts[-1])
    parameters = dict(model.named_parameters(remove_duplicate=False))
    readers: dict[str, tuple[int, NDArray[np.int64]]] = {}
    for group, start in zip(graph.groups, starts[:-1], strict=True):
        for member in group.members:
            if member.role != "in":
                continue
            length = parameters[member.weight].shape[member.dim]
            dim, flags = readers.setdefault(member.weight, (member.dim, np.full(length, always_on)))
            wanted = np.repeat(start + np.arange(group.size), member.index.shape[1])
            positions = member.index.reshape(-1)
            taken = flags[positions]
            if dim != member.dim or not np.all((taken == always_on) | (taken == wanted)):
                raise PlanError(f"columns of {member.weight!r} belong to several units and cannot be switched alone")
            flags[positions] = wanted
    return readers


def _flat(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return (tensor.permute(0, 2, 3, 1) if channels_last and tensor.ndim == 4 else tensor).reshape(-1)
