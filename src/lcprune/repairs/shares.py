"""What a group's readers lose when only its best units stay, stand-ins counted in: in closed form, for every width.

With the covariance S of a reader's input channels, in the order in which they are kept, and S = L L^T, the part of
channel j that those before it cannot predict is column j of L. What the outputs W x lose with it is |W L[:, j]|^2, and
what they lose with all channels from k on is the sum of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lcprune.graph.channel_graph import ChannelGraph
from lcprune.repairs.layers import groups_of, is_transposed, matrix
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.stand_ins import RIDGE, ridge
from lcprune.repairs.wiring import Site

Floats = NDArray[np.float64]


def lost_shares(quick: QuickRepair, graph: ChannelGraph, scores: Sequence[Floats]) -> list[Floats]:
    """For every group, the share that its readers lose with 0, 1, 2 ... of its best units left; the last is 0.

    Where no reader of it was measured, it is the share of units.

    Args:
        quick: what was measured of the network.
        graph: of it.
        scores: of the units; higher ones stay longer.
    """
    sites = {f"{site.name}.weight": site for site in quick.sites}
    found = []
    for group, score in zip(graph.groups, scores, strict=True):
        order = np.argsort(score, kind="stable")[::-1]
        lost = np.zeros(group.size)
        for member in group.members:
            if member.role == "in" and member.weight in sites:
                lost += _lost(quick, sites[member.weight], member.index[order])
        lost = lost if lost.sum() > 0 else np.ones(group.size)
        found.append(np.append(np.cumsum(lost[::-1])[::-1] / lost.sum(), 0.0))
    return found


def _lost(quick: QuickRepair, site: Site, index: NDArray[np.int64]) -> Floats:
    """What a layer's outputs lose with every unit, given those before it; zeros where that is not known."""
    layer: Any = quick.whole.get_submodule(site.name)
    if groups_of(layer) > 1 or is_transposed(layer):
        return np.zeros(len(index))
    mean, second = quick.moments(site)
    taps = site.columns.taps
    own = torch.as_tensor(index[:, ::taps] // taps, device=mean.device)
    flat = own.reshape(-1)
    spread = (second - torch.outer(mean, mean))[flat][:, flat]
    weight = matrix(layer, taps)[0].transpose(1, 2).flatten(0, 1)[:, flat]
    lower = torch.linalg.cholesky(spread + ridge(spread, RIDGE, second.diagonal()[flat].mean()))
    lost: Tensor = (lower * (weight.T @ weight @ lower)).sum(0)
    return lost.view(own.shape).sum(1).cpu().numpy()
