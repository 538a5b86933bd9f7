"""One copy of the network that takes on the weights of any candidate, in place: as cut, or repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.batches import call
from lcprune.copies import copy_to_run
from lcprune.errors import PlanError
from lcprune.evaluate.prepare import Preparation
from lcprune.repairs.quick import MaskedStandIns

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

Readers = dict[str, tuple[int, NDArray[np.int64]]]


class Switchboard:
    """Turns units of a network on and off in place: one flag per unit, wired to every weight that reads the unit.

    All weights that consume units are moved into one buffer, so that writing a selection is one gather of
    flags and one product, whatever the number of layers; nothing is allocated and no address ever changes.

    Args:
        graph: says which columns read which units.
        model: a copy of the graph's network (folded or not), which this object changes from now on.
        channels_last: store four-dimensional weights in that memory format.
    """

    def __init__(self, graph: ChannelGraph, model: nn.Module, channels_last: bool = False) -> None:
        self.units = int(sum(group.size for group in graph.groups))
        self.readers = read_positions(graph, model)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        dtypes = {parameters[name].dtype for name in self.readers}
        if len(dtypes) > 1:
            raise PlanError(f"weights of several types ({', '.join(map(str, dtypes))}) cannot be switched together")
        device = next(model.parameters()).device
        dtype = dtypes.pop() if dtypes else torch.float32
        originals = [torch.empty(0, dtype=dtype, device=device)]
        flags = [torch.empty(0, dtype=torch.int32, device=device)]
        for name, (dim, unit) in self.readers.items():
            weight = parameters[name].detach()
            shape = [1] * weight.ndim
            shape[dim] = -1
            flag = torch.as_tensor(unit, dtype=torch.int32).view(shape).expand(weight.shape)
            originals.append(_flat(weight, channels_last))
            flags.append(_flat(flag, channels_last).to(device))
        self._original, self._flag_of = torch.cat(originals), torch.cat(flags)
        self._written = self._original.clone()
        self._factor = torch.empty_like(self._original)
        # The last flag is never switched off: it belongs to columns that no group can remove.
        self.flags = torch.ones(self.units + 1, dtype=dtype, device=device)
        self._host = torch.ones(self.units + 1, dtype=dtype, pin_memory=device.type == "cuda")
        start = 0
        for name in self.readers:
            parameter = parameters[name]
            part = self._written[start : start + parameter.numel()]
            start += parameter.numel()
            if channels_last and parameter.ndim == 4:
                out, inner, height, width = parameter.shape
                parameter.data = part.view(out, height, width, inner).permute(0, 3, 1, 2)
            else:
                parameter.data = part.view(parameter.shape)

    def set(self, mask: NDArray[np.bool_]) -> None:
        """Choose which units are on, by flags of (units,), groups one after another; takes effect with `write`."""
        self._host[:-1] = torch.from_numpy(mask)
        self.flags.copy_(self._host, non_blocking=True)

    def write(self) -> None:
        """Write the chosen units into the weights: fixed addresses and shapes, so it can be captured."""
        if self._original.numel():
            torch.index_select(self.flags, 0, self._flag_of, out=self._factor)
            torch.mul(self._original, self._factor, out=self._written)


class RepairedBoard:
    """Writes repaired candidates into a folded copy: silence, stand-ins, new statistics, folding.

    Nothing changes its shape or address, so that `write` can be captured.

    Args:
        graph: of the network.
        folded: the copy that is judged.
        pairs: (convolution, batch norm) names that are folded in it.
        preparation: what candidates get.

    Raises:
        PlanError: a layer needs stand-ins that masks cannot give.
    """

    def __init__(
        self, graph: ChannelGraph, folded: nn.Module, pairs: Sequence[tuple[str, str]], preparation: Preparation
    ) -> None:
        self._model = copy_to_run(graph.model).requires_grad_(False)
        quick, self._renewal = preparation.quick, preparation.renewal
        # First: it remembers whole weights. What the stand-ins do not write, the switchboard silences.
        self._switches = Switchboard(graph, self._model)
        self.units = self._switches.units
        units = {name: unit for name, (_, unit) in self._switches.readers.items()}
        self._stand_ins = None if quick is None else MaskedStandIns(quick, self._model, units)
        self._folds = _Folds(self._model, folded, pairs) if pairs else None
        merged = {name for pair in pairs for name in pair}
        own, theirs = _tensors(self._model), _tensors(folded)
        same = [n for n, tensor in own.items() if tensor.is_floating_point() and n.rpartition(".")[0] not in merged]
        self._copies = [theirs[name] for name in same], [own[name] for name in same]

    def set(self, mask: NDArray[np.bool_]) -> None:
        """Choose which units are on, and find what stands in for the others; takes effect with the next `write`."""
        self._switches.set(mask)
        if self._stand_ins is not None:
            self._stand_ins.solve(self._switches.flags)

    def write(self) -> None:
        """Write the chosen candidate into the folded copy."""
        self._switches.write()
        if self._stand_ins is not None:
            self._stand_ins.write()
        if self._renewal is not None:
            self._renewal.restore(self._model)
            with self._renewal.renewing(self._model, {}, [0]):
                call(self._model, self._renewal.batches[0].inputs)
        if self._folds is not None:
            self._folds.write()
        if self._copies[0]:
            torch._foreach_copy_(*self._copies)


def read_positions(graph: ChannelGraph, model: nn.Module) -> Readers:
    """For each weight that consumes units: the dimension, and the unit at each position along it.

    Units are numbered group after group; positions that no group can remove have the number after them.

    Raises:
        PlanError: a position belongs to several units.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    always_on = int(sum(group.size for group in graph.groups))
    readers: Readers = {}
    start = 0
    for group in graph.groups:
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
        start += group.size
    return readers


def _flat(tensor: Tensor, channels_last: bool) -> Tensor:
    return (tensor.permute(0, 2, 3, 1) if channels_last and tensor.ndim == 4 else tensor).reshape(-1)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())


class _Folds:
    """Writes convolutions with the batch norms behind them into other convolutions, the norms of all layers at once."""

    def __init__(self, model: nn.Module, folded: nn.Module, pairs: Sequence[tuple[str, str]]) -> None:
        self.layers: list[Any] = [model.get_submodule(layer) for layer, _ in pairs]
        self.norms: list[Any] = [model.get_submodule(norm) for _, norm in pairs]
        self.targets: list[Any] = [folded.get_submodule(layer) for layer, _ in pairs]
        means = [norm.running_mean for norm in self.norms]
        self.widths = [len(mean) for mean in means]
        self.eps = torch.cat([torch.full_like(mean, norm.eps) for mean, norm in zip(means, self.norms, strict=True)])
        weights = [torch.ones_like(m) if n.weight is None else n.weight for m, n in zip(means, self.norms, strict=True)]
        biases = [torch.zeros_like(m) if n.bias is None else n.bias for m, n in zip(means, self.norms, strict=True)]
        self.weight, self.bias = torch.cat(weights).detach(), torch.cat(biases).detach()
        zeros = (torch.zeros_like(mean) for mean in means)
        self.shifts = [
            zero if layer.bias is None else layer.bias for layer, zero in zip(self.layers, zeros, strict=True)
        ]

    def write(self) -> None:
        scale = self.weight * torch.rsqrt(torch.cat([norm.running_var for norm in self.norms]) + self.eps)
        mean = torch.cat([norm.running_mean for norm in self.norms]) - torch.cat(self.shifts)
        shift = self.bias - mean * scale
        for layer, own, target in zip(self.layers, scale.split(self.widths), self.targets, strict=True):
            target.weight.copy_(layer.weight * own.view(-1, *[1] * (layer.weight.ndim - 1)))
        torch._foreach_copy_([target.bias for target in self.targets], shift.split(self.widths))
