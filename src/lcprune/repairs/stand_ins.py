"""Stand-ins: what a layer got from the channels that go, rebuilt from those that stay.

With mean m and covariance S of the layer's input in the whole network, A = S[gone, kept] (S[kept, kept] + ridge)^-1
predicts the ones from the others. The kept columns take W[:, gone] A, and the bias W[:, gone] (m[gone] - A m[kept]).
Without a bias, S is not centred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.repairs.layers import matrix, write
from lcprune.repairs.moments import Moments, mean_and_second
from lcprune.repairs.watch import LayerRun
from lcprune.repairs.wiring import Site

RIDGE = 1e-4  # of the mean variance
ROUNDING = 1e-10  # of the mean square: a smaller variance is nothing but rounding


def stand_in(whole: nn.Module, small: nn.Module, sites: Iterable[Site], moments: Mapping[LayerRun, Moments]) -> None:
    """Give every layer of the cut network that reads fewer channels its stand-ins, in place."""
    for site in sites:
        if site.cover is None:
            continue
        mean, second = mean_and_second([moments[run] for run in site.runs])
        weight = left_rows(whole, site)
        reads = weight.shape[2]
        kept, gone = _kept_and_gone(site, reads)
        centred = can_shift(small, site)
        spread = second - torch.outer(mean, mean) if centred else second
        own = spread[kept[:, :, None], kept[:, None, :]]  # (groups, kept, kept)
        cross = spread[gone[:, :, None], kept[:, None, :]]
        damp = ridge(own, RIDGE, second.diagonal()[kept].mean(1))
        stand_ins = torch.linalg.solve(own + damp, cross.mT).mT  # (groups, gone, kept)
        lost = _take(weight, gone % reads)
        cut: Any = small.get_submodule(site.name)
        write(cut, _take(weight, kept % reads) + torch.einsum("gout,gui->goit", lost, stand_ins))
        if centred:
            rest = mean[gone] - (stand_ins @ mean[kept][..., None])[..., 0]
            shift(small, site, torch.einsum("gout,t,gu->go", lost, site.cover, rest).flatten())


def left_rows(whole: nn.Module, site: Site) -> Tensor:
    """Of the whole layer's matrix the outputs that stay, by the groups that are left."""
    layer: Any = whole.get_submodule(site.name)
    weight = matrix(layer, site.columns.taps)
    outputs = site.columns.outputs.to(weight.device)
    return weight.flatten(0, 1)[outputs].unflatten(0, (len(site.columns.source), -1))


def _kept_and_gone(site: Site, reads: int) -> tuple[Tensor, Tensor]:
    """Channels that each group still reads and those that it no longer does, counted in the whole input."""
    source, kept = site.columns.source, site.columns.inputs
    every = source[:, None] * reads + torch.arange(reads)
    gone = every[~(every[:, :, None] == kept[:, None, :]).any(2)].reshape(len(source), reads - kept.shape[1])
    return kept, gone


def _take(weight: Tensor, inputs: Tensor) -> Tensor:
    """Of every group's matrix (outputs, inputs, taps), some inputs of its own."""
    index = inputs.to(weight.device)[:, None, :, None].expand(-1, weight.shape[1], -1, weight.shape[3])
    return weight.gather(2, index)


def ridge(gram: Tensor, share: float, squares: Tensor) -> Tensor:
    """A share of the mean diagonal, for a batch of covariances; never less than rounding leaves of the mean squares."""
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    damp = share * scale.clamp(min=0) + ROUNDING * squares + torch.finfo(torch.float32).tiny
    return damp[..., None, None] * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)


def can_shift(small: nn.Module, site: Site) -> bool:
    """Whether a constant can be added to what a layer gives without a parameter that was not there."""
    return small.get_submodule(site.name).bias is not None or site.norm is not None


@torch.no_grad()
def shift(small: nn.Module, site: Site, by: Tensor) -> None:
    """Add a constant to what a layer gives: by its bias, or by the mean that the batch norm behind it subtracts."""
    bias: Any = small.get_submodule(site.name).bias
    if bias is not None:
        bias += by.to(bias.dtype)
    elif site.norm is not None:
        mean: Any = small.get_submodule(site.norm).running_mean
        mean -= by.to(mean.dtype)
