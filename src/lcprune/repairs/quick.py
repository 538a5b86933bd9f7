"""Stand-ins for every candidate of a search, from moments that are measured once.

On a GPU they are written by masks: every cut of a network has the same shapes, so layers of one width are solved as one
batch. With flags m of the channels that stay, M = diag(m) and the covariance S of a layer's input,

    K = M S M + ridge M + (I - M),    A = (I - M) S M K^-1,    W <- W M + W (I - M) A

is what `stand_in` does to the weight of the smaller layer, with zeros where that has no columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import Batch
from lcprune.copies import copy_to_run
from lcprune.errors import PlanError
from lcprune.plan import Plan
from lcprune.repairs.layers import groups_of, is_transposed, matrix
from lcprune.repairs.moments import mean_and_second, measure_moments
from lcprune.repairs.stand_ins import RIDGE, ROUNDING, can_shift, stand_in
from lcprune.repairs.wiring import Site, Survey


class QuickRepair:
    """Stand-ins for every cut of one network, which is not changed.

    The plan cuts every group that a candidate may cut: what their readers, the `sites`, get on the images is measured.
    """

    def __init__(self, whole: nn.Module, plan: Plan, batches: Sequence[Batch]) -> None:
        self.whole = copy_to_run(whole)
        self._survey = Survey(self.whole, pytree.tree_map(lambda leaf: leaf[:2], batches[0].inputs))
        self.sites = tuple(site for site in self._survey.wiring(plan).sites if site.cut)
        self._moments = measure_moments(self.whole, self.sites, batches)

    def moments(self, site: Site) -> tuple[Tensor, Tensor]:
        """Mean and second moment of what a layer reads in the whole network."""
        return mean_and_second([self._moments[run] for run in site.runs])

    def __call__(self, small: nn.Module, plan: Plan) -> None:
        """Give a cut network its stand-ins, in place."""
        measured = {(site.name, site.columns.taps) for site in self.sites}
        sites = [s for s in self._survey.wiring(plan).sites if (s.name, s.columns.taps) in measured]
        with torch.no_grad():
            stand_in(self.whole, small, sites, self._moments)


class MaskedStandIns:
    """Writes the stand-ins of any selection into one copy of the network, in place; other weights stay as they are.

    `units` has the number of the flag of each input channel, by weight.

    Raises:
        PlanError: a layer needs stand-ins that masks cannot give.
    """

    def __init__(self, quick: QuickRepair, model: nn.Module, units: Mapping[str, NDArray[Any]]) -> None:
        widths: dict[int, list[tuple[Site, Tensor, Tensor, Tensor]]] = {}
        for site in quick.sites:
            layer: Any = model.get_submodule(site.name)
            if groups_of(layer) > 1 or is_transposed(layer):
                raise PlanError(f"{site.name} is grouped or transposed: stand-ins for it need a smaller network")
            mean, second = quick.moments(site)
            own = torch.as_tensor(units[f"{site.name}.weight"])[:: site.columns.taps]
            widths.setdefault(len(mean), []).append((site, own.to(mean.device), mean, second))
        self._widths = [_Width(model, column) for column in widths.values()]

    def solve(self, flags: Tensor) -> None:
        """Find the stand-ins of a selection: one flag per unit, and a last one for what always stays."""
        for width in self._widths:
            width.solve(flags)

    def write(self) -> None:
        """Write them into the weights: fixed addresses and shapes, so it can be captured."""
        for width in self._widths:
            width.write()


class _Layer(NamedTuple):
    weight: Tensor  # of the layer that is written
    whole: Tensor  # (outputs, taps, channels) what it was
    bias: tuple[Tensor, Tensor] | None  # likewise, both; None where a batch norm or nobody takes the shift
    cover: Tensor | None


class _Width:
    """All layers that read so many channels, side by side in the first dimension of every tensor.

    Attributes:
        units: (layers, channels) the flag of every channel.
        spread: (layers, channels, channels) covariance, or second moment where nothing can be shifted.
        squares: (layers, channels) mean squares.
        mean: (layers, channels).
        on: (layers, channels) the flags that are set.
        stand_ins: (layers, channels, channels) what predicts the channels that go from those that stay.
    """

    def __init__(self, model: nn.Module, column: Sequence[tuple[Site, Tensor, Tensor, Tensor]]) -> None:
        self.layers, spreads = list[_Layer](), list[Tensor]()
        for site, _, mean, second in column:
            layer: Any = model.get_submodule(site.name)
            shifts = can_shift(model, site)
            spreads.append(second - torch.outer(mean, mean) if shifts else second)
            weight, bias = layer.weight.detach(), None
            if shifts and site.norm is None:
                bias = layer.bias.detach(), layer.bias.detach().to(torch.float64, copy=True)
            whole = matrix(layer, site.columns.taps)[0].transpose(1, 2).to(weight.dtype, copy=True).contiguous()
            self.layers.append(_Layer(weight, whole, bias, site.cover))
        self.units = torch.stack([units for _, units, _, _ in column])
        self.spread = torch.stack(spreads)
        self.squares = torch.stack([second.diagonal() for _, _, _, second in column])
        self.mean = torch.stack([mean for _, _, mean, _ in column])
        self.on, self.stand_ins = torch.ones_like(self.mean), torch.zeros_like(self.spread)

    def solve(self, flags: Tensor) -> None:
        on = flags.double()[self.units]
        off, kept = 1 - on, on.sum(1)
        scale = (self.spread.diagonal(dim1=1, dim2=2) * on).sum(1) / kept
        damp = RIDGE * scale.clamp(min=0) + ROUNDING * (self.squares * on).sum(1) / kept
        damp = damp + torch.finfo(torch.float32).tiny
        gram = self.spread * on[:, :, None] * on[:, None, :]
        gram.diagonal(dim1=1, dim2=2).add_(on * damp[:, None] + off)
        cross = self.spread * on[:, :, None] * off[:, None, :]
        lower = torch.linalg.cholesky_ex(gram).L
        half = torch.linalg.solve_triangular(lower, cross, upper=False)
        solved = torch.linalg.solve_triangular(lower.mT, half, upper=True)
        self.on.copy_(on)
        self.stand_ins.copy_(solved.mT)

    def write(self) -> None:
        for layer, flags, stand_ins, mean in zip(self.layers, self.on, self.stand_ins, self.mean, strict=True):
            on = flags.to(layer.whole.dtype)
            lost = layer.whole * (1 - on)
            new = layer.whole * on + lost @ stand_ins.to(lost.dtype)
            layer.weight.copy_(new.transpose(1, 2).reshape(layer.weight.shape))
            if layer.bias is not None:
                (bias, first), rest = layer.bias, mean - stand_ins @ mean
                bias.copy_(first + torch.einsum("otc,t,c->o", lost.double(), layer.cover, rest))
