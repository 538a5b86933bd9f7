"""One copy of the network that takes on the weights of any repaired candidate, in place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.batches import call
from lcprune.evaluate.prepare import Preparation
from lcprune.evaluate.switchboard import Switchboard, read_positions
from lcprune.repairs.quick import MaskedStandIns

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph


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
        self._model = copy.deepcopy(graph.model).eval().requires_grad_(False)
        units = {name: unit for name, (_, unit) in read_positions(graph, self._model).items()}
        quick, self._renewal = preparation.quick, preparation.renewal
        # First: it remembers whole weights. What it does not write, the switchboard silences.
        self._switches = Switchboard(graph, self._model)
        self._stand_ins = None if quick is None else MaskedStandIns(quick, self._model, units)
        self.units = self._switches.units
        self._folds = [
            (self._model.get_submodule(layer), self._model.get_submodule(norm), folded.get_submodule(layer))
            for layer, norm in pairs
        ]
        names = {f"{name}." for pair in pairs for name in pair}
        theirs = dict(folded.named_parameters(remove_duplicate=False)) | dict(folded.named_buffers())
        ours = dict(self._model.named_parameters(remove_duplicate=False)) | dict(self._model.named_buffers())
        self._copies = [
            (theirs[name], tensor)
            for name, tensor in ours.items()
            if tensor.is_floating_point() and name.rpartition(".")[0] + "." not in names
        ]

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
            with self._renewal.renewing(self._model, {}, [0]):
                call(self._model, self._renewal.batches[0].inputs)
        for fold in self._folds:
            _fold(*fold)
        for target, source in self._copies:
            target.copy_(source)


def _fold(layer: Any, norm: Any, target: Any) -> None:
    """Write a convolution with the batch norm behind it into another convolution."""
    scale = torch.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    mean = norm.running_mean if layer.bias is None else norm.running_mean - layer.bias
    shift = -(mean * scale)
    target.weight.copy_(layer.weight * scale.view(-1, *[1] * (layer.weight.ndim - 1)))
    target.bias.copy_(shift if norm.bias is None else shift + norm.bias)
