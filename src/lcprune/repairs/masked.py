"""Stand-ins by masks: every cut of a network has the same shapes, so layers of one width are solved as one batch.

With flags m of the channels that stay, M = diag(m) and the covariance S of a layer's input,

    K = M S M + ridge M + (I - M),    A = (I - M) S M K^-1,    W <- W M + W (I - M) A

is what `stand_ins` does to the weight of the smaller layer, with zeros where that has no columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.errors import PlanError
from lcprune.repairs.layers import groups_of, is_transposed, matrix
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.stand_ins import RIDGE, ROUNDING, can_shift


@dataclass(eq=False)
class _Width:
    """All layers that read so many channels.

    Attributes:
        units: (layers, channels) the flag of every channel.
        spread: (layers, channels, channels) covariance, or second moment where nothing can be shifted.
        squares: (layers, channels) mean squares.
        mean: (layers, channels).
        on: (layers, channels) the flags that are set.
        stand_ins: (layers, channels, channels) what predicts the channels that go from those that stay.
    """

    units: Tensor
    spread: Tensor
    squares: Tensor
    mean: Tensor
    on: Tensor
    stand_ins: Tensor

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


@dataclass(eq=False)
class _Layer:
    weight: Tensor  # of the layer that is written
    bias: Tensor | None  # likewise; None where a batch norm or nobody takes the shift
    whole: Tensor  # (outputs, taps, channels)
    first_bias: Tensor | None
    cover: Tensor
    width: _Width
    place: int  # in its width

    def write(self) -> None:
        on = self.width.on[self.place].to(self.whole.dtype)
        stand_ins = self.width.stand_ins[self.place]
        lost = self.whole * (1 - on)
        new = self.whole * on + lost @ stand_ins.to(lost.dtype)
        self.weight.copy_(new.transpose(1, 2).reshape(self.weight.shape))
        if self.bias is not None and self.first_bias is not None:
            mean = self.width.mean[self.place]
            rest = mean - stand_ins @ mean
            self.bias.copy_(self.first_bias + torch.einsum("otc,t,c->o", lost.double(), self.cover, rest))


class MaskedStandIns:
    """Writes the stand-ins of any selection into one copy of the network, in place.

    Args:
        quick: what was measured of the whole network.
        model: the copy; weights of layers that nothing stands in for are not written.
        units: weight -> the flag of each of its input channels.

    Raises:
        PlanError: a layer needs stand-ins that masks cannot give.
    """

    def __init__(self, quick: QuickRepair, model: nn.Module, units: Mapping[str, NDArray[np.int64]]) -> None:
        columns: dict[int, list[Any]] = {}
        entries = []
        for site in quick.sites:
            layer: Any = model.get_submodule(site.name)
            if groups_of(layer) > 1 or is_transposed(layer):
                raise PlanError(f"{site.name} is grouped or transposed: stand-ins for it need a smaller network")
            mean, second = quick.moments(site)
            own = torch.as_tensor(units[f"{site.name}.weight"])[:: site.columns.taps]
            shifts = can_shift(model, site)
            spread = second - torch.outer(mean, mean) if shifts else second
            column = columns.setdefault(len(mean), [])
            entries.append((site, layer, shifts, len(mean), len(column)))
            column.append((own.to(mean.device), spread, second.diagonal(), mean))
        self._widths = {size: _width(column) for size, column in columns.items()}
        self._layers = []
        for site, layer, shifts, size, place in entries:
            whole = matrix(layer, site.columns.taps)[0].transpose(1, 2).contiguous().to(layer.weight.dtype)
            takes = shifts and site.norm is None
            bias = layer.bias.detach() if takes else None
            first = bias.double() if bias is not None else None
            assert site.cover is not None
            self._layers.append(
                _Layer(layer.weight.detach(), bias, whole, first, site.cover, self._widths[size], place)
            )

    def solve(self, flags: Tensor) -> None:
        """Find the stand-ins of a selection: one flag per unit, and a last one for what always stays."""
        for width in self._widths.values():
            width.solve(flags)

    def write(self) -> None:
        """Write them into the weights: fixed addresses and shapes, so it can be captured."""
        for layer in self._layers:
            layer.write()


def _width(column: Sequence[tuple[Tensor, ...]]) -> _Width:
    units, spread, squares, mean = (torch.stack(parts) for parts in zip(*column, strict=True))
    return _Width(units, spread, squares, mean, torch.ones_like(mean), torch.zeros_like(spread))
