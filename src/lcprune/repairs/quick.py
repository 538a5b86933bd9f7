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
        widths: dict[int, list[_MaskedReader]] = {}
        for site in quick.sites:
            layer: Any = model.get_submodule(site.name)
            if groups_of(layer) > 1 or is_transposed(layer):
                raise PlanError(f"{site.name} is grouped or transposed: stand-ins for it need a smaller network")
            mean, second = quick.moments(site)
            own = torch.as_tensor(units[f"{site.name}.weight"])[:: site.columns.taps]
            reader = _MaskedReader(site, layer, own.to(mean.device), mean, second, can_shift(model, site))
            widths.setdefault(len(mean), []).append(reader)
        self._widths = [_Width(readers) for readers in widths.values()]

    def solve(self, flags: Tensor) -> None:
        """Find the stand-ins of a selection: one flag per unit, and a last one for what always stays."""
        for width in self._widths:
            width.solve(flags)

    def write(self) -> None:
        """Write them into the weights: fixed addresses and shapes, so it can be captured."""
        for width in self._widths:
            width.write()


class _MaskedReader(NamedTuple):
    site: Site
    layer: Any
    units: Tensor  # (channels,) the flag of every channel that it reads
    mean: Tensor  # of these in the whole network
    second: Tensor  # their second moment
    shifts: bool  # whether its outputs can be shifted

    @property
    def bias(self) -> Tensor | None:
        """What takes the shift, if it is not the batch norm behind."""
        return self.layer.bias.detach() if self.shifts and self.layer.bias is not None else None


class _Alike(NamedTuple):
    """Readers of one shape, next to one another among those of a width."""

    place: slice
    weights: list[Tensor]  # that are written
    whole: Tensor  # (layers, outputs, taps, channels) what they were
    biases: list[tuple[Tensor, Tensor, Any]]  # likewise, both, and the cover; none if nobody takes the shift

    @classmethod
    def of(cls, readers: Sequence[_MaskedReader], begin: int) -> _Alike:
        weights = [reader.layer.weight.detach() for reader in readers]
        wholes = [matrix(reader.layer, reader.site.columns.taps)[0].transpose(1, 2) for reader in readers]
        both = [(reader.bias, reader.site.cover) for reader in readers]
        biases = [(bias, bias.double().clone(), cover) for bias, cover in both if bias is not None]
        place = slice(begin, begin + len(readers))
        return cls(place, weights, torch.stack(wholes).to(weights[0].dtype), biases)


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

    def __init__(self, readers: Sequence[_MaskedReader]) -> None:
        shapes: dict[Any, list[_MaskedReader]] = {}
        for reader in readers:
            weight, taps = reader.layer.weight, reader.site.columns.taps
            shapes.setdefault((weight.shape, weight.dtype, taps, reader.bias is None), []).append(reader)
        self.alike, ordered = list[_Alike](), list[_MaskedReader]()
        for own in shapes.values():
            self.alike.append(_Alike.of(own, len(ordered)))
            ordered += own
        self.units = torch.stack([reader.units for reader in ordered])
        self.spread = torch.stack([r.second - torch.outer(r.mean, r.mean) if r.shifts else r.second for r in ordered])
        self.squares = torch.stack([reader.second.diagonal() for reader in ordered])
        self.mean = torch.stack([reader.mean for reader in ordered])
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
        for place, weights, whole, biases in self.alike:
            on = self.on[place, None, None].to(whole.dtype)
            lost, stand_ins = whole * (1 - on), self.stand_ins[place]
            new = whole * on + lost @ stand_ins[:, None].to(whole.dtype)
            shape = weights[0].shape
            torch._foreach_copy_(weights, [one.transpose(1, 2).reshape(shape) for one in new])
            if biases:
                rests = self.mean[place] - (stand_ins @ self.mean[place, :, None])[..., 0]
                for (bias, first, cover), gone, rest in zip(biases, lost, rests, strict=True):
                    bias.copy_(first + torch.einsum("otc,t,c->o", gone.double(), cover, rest))
