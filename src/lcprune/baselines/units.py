"""Reaching the weights of units in a network that keeps its full size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.graph.channel_graph import ChannelGraph
from lcprune.plan import Plan


def zero_units(
    graph: ChannelGraph, model: nn.Module, units: Sequence[NDArray[np.int64]], roles: tuple[str, ...] = ("out", "along")
) -> None:
    """Set the weights of some units to zero, in place.

    With filters ("out") and what rides on them ("along": bias, norm), a unit gives zero to its readers wherever what
    lies between keeps zero at zero. Statistics of norms stay.

    Args:
        units: per group, which units.
        roles: which of their weights.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group, gone in zip(graph.groups, units, strict=True):
        for member in group.members if len(gone) else ():
            if member.role in roles and member.weight in parameters:
                weight = parameters[member.weight].detach()
                index = torch.as_tensor(member.index[gone].reshape(-1), device=weight.device)
                weight.index_fill_(member.dim, index, 0)


@torch.no_grad()
def put_back(model: nn.Module, smaller: nn.Module, plan: Plan) -> None:
    """Write the weights of a cut network back into the full-size one, in place: the inverse of `plan.apply`.

    Weights of units that the plan removes stay what they were.

    Args:
        smaller: `plan.apply(model)`, trained further.
    """
    full = model.state_dict()
    for name, value in smaller.state_dict().items():
        place: tuple[torch.Tensor | slice, ...] = ()
        cuts = plan.cuts.get(name, {})
        sizes = [len(cuts[dim]) if dim in cuts else length for dim, length in enumerate(full[name].shape)]
        for dim, size in enumerate(sizes):
            index = torch.as_tensor(cuts[dim]) if dim in cuts else torch.arange(size)
            shape = [1] * len(sizes)
            shape[dim] = -1
            place += (index.to(full[name].device).view(shape),)
        if place and cuts:
            full[name][place] = value
        else:
            full[name].copy_(value)
