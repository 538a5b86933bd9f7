"""What a group's readers lose with its units, stand-ins counted in: in closed form.

With the covariance S of a reader's input channels, in the order in which they are kept, and S = L L^T, the part of
channel j that those before it cannot predict is column j of L. What the outputs W x lose with it is |W L[:, j]|^2, and
what they lose with all channels from k on is the sum of these.

Which unit costs least can be asked again after each that goes. With P the inverse of the covariance of the channels
that are left and W their weight, stand-ins counted in, channel j costs |W[:, j]|^2 / P[j, j]. When channels g go, those
that stay take over W[:, g] A with A = -P[g, g]^-1 P[g, kept].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lcprune.graph.channel_graph import ChannelGraph, Group
from lcprune.repairs.layers import groups_of, is_transposed, matrix
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.stand_ins import RIDGE, ridge

Floats = NDArray[np.float64]
UnitOrder = NDArray[np.int64]

_STEPS = 64  # in which the units of a group go, when their order is sought


def lost_shares(quick: QuickRepair, graph: ChannelGraph, scores: Sequence[Floats]) -> list[Floats]:
    """For every group, the share that its readers lose with 0, 1, 2 ... of its best units left; the last is 0.

    Where no reader of it was measured, it is the share of units. Units with higher scores stay longer.
    """
    found = []
    for group, score in zip(graph.groups, scores, strict=True):
        order = np.argsort(score, kind="stable")[::-1]
        lost = sum((reader.lost(order) for reader in _readers(quick, group)), np.zeros(group.size))
        lost = lost if lost.sum() > 0 else np.ones(group.size)
        found.append(np.append(np.cumsum(lost[::-1])[::-1] / lost.sum(), 0.0))
    return found


def least_lost(quick: QuickRepair, graph: ChannelGraph) -> list[tuple[UnitOrder, Floats] | None]:
    """For every group, its units in the order in which its readers miss them least, and the share lost with each.

    Shares never fall: a unit counts for no less than those before it. None where no reader of the group was measured.
    """
    return [_eliminated(readers, group.size) if (readers := _readers(quick, group)) else None for group in graph.groups]


@dataclass(frozen=True, eq=False)
class _GroupReader:
    """A layer that reads a group."""

    spread: Tensor  # covariance of the channels that it reads of the group, unit after unit, with a little ridge
    gram: Tensor  # what a pair of them counts for in its outputs, W^T W
    own: int  # how many channels belong to a unit

    def lost(self, order: UnitOrder) -> Floats:
        """What outputs lose with every unit, given those before it in this order."""
        flat = torch.as_tensor((order[:, None] * self.own + np.arange(self.own)).reshape(-1))
        lower = torch.linalg.cholesky(self.spread[flat][:, flat])
        lost = (lower * (self.gram[flat][:, flat] @ lower)).sum(0)
        return lost.view(-1, self.own).sum(1).numpy()


def _readers(quick: QuickRepair, group: Group) -> list[_GroupReader]:
    """The plain layers that read a group and were measured; on the CPU, where many small steps are quick."""
    sites = {f"{site.name}.weight": site for site in quick.sites}
    found = []
    for member in group.members:
        if member.role != "in" or member.weight not in sites:
            continue
        site = sites[member.weight]
        layer: Any = quick.whole.get_submodule(site.name)
        if groups_of(layer) > 1 or is_transposed(layer):
            continue
        mean, second = (moment.cpu() for moment in quick.moments(site))
        taps = site.columns.taps
        own = member.index[:, ::taps] // taps
        flat = torch.as_tensor(own.reshape(-1))
        spread = (second - torch.outer(mean, mean))[flat][:, flat]
        spread = spread + ridge(spread, RIDGE, second.diagonal()[flat].mean())
        weight = matrix(layer, taps)[0].transpose(1, 2).flatten(0, 1).to(spread)[:, flat]
        found.append(_GroupReader(spread, weight.T @ weight, own.shape[1]))
    return found


def _eliminated(readers: Sequence[_GroupReader], size: int) -> tuple[UnitOrder, Floats]:
    """Units as they go, some at a time, and the share that is lost with each."""
    inverses = [torch.linalg.inv(reader.spread) for reader in readers]
    grams = [reader.gram for reader in readers]
    left = torch.arange(size)
    order, shares = [], []
    while len(left):
        costs = torch.zeros(len(left), dtype=grams[0].dtype)
        for reader, inverse, gram in zip(readers, inverses, grams, strict=True):
            costs += (gram.diagonal() / inverse.diagonal()).clamp(min=0).view(-1, reader.own).sum(1)
        goes = torch.argsort(costs, stable=True)[: max(1, size // _STEPS)]
        order.append(left[goes])
        shares.append(costs[goes])
        stays = torch.ones(len(left), dtype=torch.bool)
        stays[goes] = False
        left = left[stays]
        for index, reader in enumerate(readers):
            parts = [some.repeat_interleave(reader.own).nonzero()[:, 0] for some in (~stays, stays)]
            inverses[index], grams[index] = _without(inverses[index], grams[index], *parts)
    lost = np.maximum.accumulate(torch.cat(shares).numpy())
    return torch.cat(order).numpy(), lost / (lost.sum() or 1.0)


def _without(inverse: Tensor, gram: Tensor, gone: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse covariance and the gram matrix of those that stay, which stand in for those that go."""
    cross = inverse[gone][:, kept]
    stand_ins = -torch.linalg.solve(inverse[gone][:, gone], cross)
    taken = stand_ins.T @ gram[gone][:, kept]
    gram = gram[kept][:, kept] + taken + taken.T + stand_ins.T @ gram[gone][:, gone] @ stand_ins
    return inverse[kept][:, kept] + cross.T @ stand_ins, gram
