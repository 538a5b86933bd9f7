"""Where each entry of a cut network's state lies in the original's.

A cut selects entries of weights. Which ones is read off a copy of the original whose entries are their own numbers:
whatever the plan does to it, the numbers that are left say where they came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lcprune.copies import copy_with, unwrap
from lcprune.errors import TuneError

if TYPE_CHECKING:
    from lcprune.plan import Plan

_OTHER = "; tune this network by itself, with `fit`"


class Layout:
    """The places that a cut's entries have at full width.

    Args:
        original: the network that was cut.
        plan: the cut; None for none.
        device: of the tensors that will be asked for.

    Raises:
        TuneError: if the plan does anything other than select entries; the message names the parameter.
    """

    def __init__(self, original: nn.Module, plan: Plan | None, device: torch.device | str = "cpu") -> None:
        whole, generator = unwrap(original), torch.Generator().manual_seed(0)
        self.shapes = {name: tensor.shape for name, tensor in whole.state_dict().items()}
        # The place of each entry and a fraction of its own, by which no sum or multiple of entries passes for an entry;
        # below one half, so that no rounding makes it the next place.
        fractions = {
            name: torch.rand(shape.numel(), dtype=torch.float64, generator=generator) / 2
            for name, shape in self.shapes.items()
        }
        numbers = {name: torch.arange(len(fraction)) + fraction for name, fraction in fractions.items()}

        def number(name: str, tensor: Tensor) -> Tensor:
            if name not in numbers:  # a buffer that is no part of the state
                return tensor.to("cpu", copy=True)
            return numbers[name].view(tensor.shape)

        small = copy_with(whole, number)
        small = small if plan is None else plan.apply(small)
        found = {name: tensor.detach() for name, tensor in small.state_dict().items()}
        # Of the shape that an entry has in the cut network: flat positions in the original's.
        self.index: dict[str, Tensor] = {}
        for name in {**self.shapes, **found}:
            if name not in self.shapes or name not in found:
                where = "cut" if name in found else "original"
                raise TuneError(f"{name} is in the {where} network only{_OTHER}")
            index = found[name].nan_to_num().clamp(0, max(len(numbers[name]) - 1, 0)).to(torch.int64)
            if not torch.equal(numbers[name][index], found[name]):
                raise TuneError(f"the cut changes {name} in other ways than by selecting entries of it{_OTHER}")
            if index.unique().numel() != index.numel():
                raise TuneError(f"the cut takes an entry of {name} more than once{_OTHER}")
            self.index[name] = index.to(device)

    def scatter(self, name: str, entry: Tensor) -> Tensor:
        """An entry of the cut network (or its momentum) at full width; zero where the cut has nothing.

        A removed channel's running variance is 1, as of a batch norm that has seen nothing.
        """
        fill = torch.ones if name.endswith("running_var") else torch.zeros
        full = fill(self.shapes[name].numel(), dtype=entry.dtype, device=entry.device)
        full[self.index[name].view(-1)] = entry.reshape(-1)
        return full.view(self.shapes[name])

    def gather(self, name: str, full: Tensor) -> Tensor:
        """The cut network's part of an entry (or its momentum) at full width."""
        return full.reshape(-1)[self.index[name]]

    def rest(self, name: str, full: Tensor) -> Tensor:
        """What `gather` leaves behind, flat."""
        left = torch.ones(full.numel(), dtype=torch.bool, device=full.device)
        left[self.index[name].view(-1)] = False
        return full.reshape(-1)[left]
