"""Where each entry of a cut network's state lies in the original's.

A cut selects entries of weights. Which ones is read off a copy of the original whose entries are their own numbers:
whatever the plan does to it, the numbers that are left say where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    Attributes:
        index: name of a state entry -> int64, of the shape that it has in the cut network: flat position in the
            original's entry.
        shapes: name -> shape in the original.

    Raises:
        TuneError: if the plan does anything other than select entries; the message names the parameter.
    """

    def __init__(self, original: nn.Module, plan: Plan | None) -> None:
        whole = unwrap(original)
        self.shapes = {name: tensor.shape for name, tensor in whole.state_dict().items()}
        # Two numberings: a sum or a multiple of entries may look like an entry in one of them, not in both.
        orders = {name: torch.randperm(shape.numel(), generator=_generator()) for name, shape in self.shapes.items()}
        plain = self._numbered(whole, plan, {name: torch.arange(len(order)) for name, order in orders.items()})
        mixed = self._numbered(whole, plan, orders)
        self.index: dict[str, Tensor] = {}
        for name in {**self.shapes, **plain}:
            if name not in self.shapes or name not in plain:
                where = "cut" if name in plain else "original"
                raise TuneError(f"{name} is in the {where} network only{_OTHER}")
            index = plain[name].round().to(torch.int64)
            whole_numbers = torch.equal(index.to(torch.float64), plain[name])
            inside = not index.numel() or (int(index.min()) >= 0 and int(index.max()) < len(orders[name]))
            if not (whole_numbers and inside and torch.equal(orders[name][index].to(torch.float64), mixed[name])):
                raise TuneError(f"the cut changes {name} in other ways than by selecting entries of it{_OTHER}")
            if index.unique().numel() != index.numel():
                raise TuneError(f"the cut takes an entry of {name} more than once{_OTHER}")
            self.index[name] = index

    @staticmethod
    def _numbered(whole: nn.Module, plan: Plan | None, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        def number(name: str, tensor: Tensor) -> Tensor:
            if name not in numbers:  # a buffer that is no part of the state
                return tensor.to("cpu", copy=True)
            return numbers[name].to(torch.float64).view(tensor.shape)

        numbered = copy_with(whole, number)
        numbered = numbered if plan is None else plan.apply(numbered)
        return {name: tensor.detach() for name, tensor in numbered.state_dict().items()}

    def to(self, device: torch.device) -> Layout:
        """Move the indices to a device, and return this."""
        self.index = {name: index.to(device) for name, index in self.index.items()}
        return self

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


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
