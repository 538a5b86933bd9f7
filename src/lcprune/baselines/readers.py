"""Layers that read a group's units: what each unit adds to their outputs, and new weights by least squares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lcprune.batches import call
from lcprune.graph.channel_graph import Group
from lcprune.repairs.watch import listening
from lcprune.scoring.passes import evaluating
from lcprune.search.space import FloatArray

Observed = tuple[FloatArray, FloatArray]

_RIDGE = 1e-4  # of the mean square of the inputs: keeps nearly equal channels from cancelling each other
_MOST_NUMBERS = 2**23  # in one matrix of contributions; rows beyond are left out


@dataclass(frozen=True, eq=False)
class Reader:
    """A convolution or linear layer that reads a group, in the network whose weights are changed.

    What it sees are `Observed`: (rows, channels, k) inputs, and the (rows, out) outputs that it should give.

    Attributes:
        name: of the layer.
        layer: it.
        index: (units, k) the input channels that belong to each unit.
    """

    name: str
    layer: nn.Conv2d | nn.Linear
    index: NDArray[np.int64]

    def contributions(self, seen: Observed) -> Observed:
        """What each unit adds to each output, (rows * out, units), and what all should add together, (rows * out,)."""
        weight = self._weight()
        rows = max(1, _MOST_NUMBERS // (weight.shape[0] * weight.shape[1]))
        patches, outputs = (part[:rows] for part in seen)
        parts = np.einsum("sik,oik->soi", patches, weight, optimize=True)
        mine = parts[:, :, self.index[:, 0]] if self.index.shape[1] == 1 else parts[:, :, self.index].sum(3)
        return mine.reshape(-1, len(self.index)), self._wanted(patches, outputs, weight).reshape(-1)

    def refit(self, seen: Observed, kept: NDArray[np.int64]) -> None:
        """Give the kept units' columns the weights that reconstruct the outputs best; zero the others'."""
        patches, outputs = seen
        weight = self._weight()
        wanted = self._wanted(patches, outputs, weight)
        columns = np.unique(self.index[kept])
        inputs = patches[:, columns].reshape(len(patches), -1)
        gram = inputs.T @ inputs
        gram[np.diag_indices_from(gram)] += _RIDGE * max(float(np.trace(gram)) / len(gram), 1e-12)
        old = weight[:, columns].reshape(len(weight), -1)
        # The ridge pulls towards the old weights, not towards zero.
        change = np.linalg.solve(gram, inputs.T @ (wanted - inputs @ old.T))
        weight[:, self.index.reshape(-1)] = 0
        weight[:, columns] = (old + change.T).reshape(len(weight), len(columns), -1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(weight).view(self.layer.weight.shape))

    def _weight(self) -> FloatArray:
        """(out, channels, k)."""
        weight = self.layer.weight.detach().double().cpu()
        numbers: FloatArray = weight.view(*weight.shape[:2], -1).numpy().copy()
        return numbers

    def _wanted(self, patches: FloatArray, outputs: FloatArray, weight: FloatArray) -> FloatArray:
        """The outputs without the bias and without what other groups add."""
        others = np.setdiff1d(np.arange(weight.shape[1]), self.index)
        wanted = outputs
        if self.layer.bias is not None:
            wanted = wanted - self.layer.bias.detach().double().cpu().numpy()
        if len(others):
            wanted = wanted - np.einsum("sik,oik->so", patches[:, others], weight[:, others], optimize=True)
        return wanted


def readers_of(model: nn.Module, group: Group) -> list[Reader]:
    """The plain convolutions and linear layers of `model` that read the group."""
    modules = dict(model.named_modules())
    found = []
    for member in group.members:
        name, _, leaf = member.weight.rpartition(".")
        layer: Any = modules[name]
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if member.role == "in" and leaf == "weight" and member.dim == 1 and (plain or type(layer) is nn.Linear):
            found.append(Reader(name, layer, member.index))
    return found


@torch.no_grad()
def watch(
    readers: Sequence[Reader],
    original: nn.Module,
    model: nn.Module,
    batches: Sequence[tuple[Any, Any]],
    points: int,
    seed: int,
) -> dict[str, Observed]:
    """By layer, what the readers get in `model` and gave in the original network, at the same random places."""

    seen: list[dict[str, list[Tensor]]] = []
    for network, of in ((model, _patches), (original, _outputs)):
        own: dict[str, list[Tensor]] = {reader.name: [] for reader in readers}
        # Both networks draw from generators in the same state, so that they look at the same places.
        generators = {name: torch.Generator().manual_seed(seed) for name in own}
        look = functools.partial(_look, of, own, generators, points)
        with evaluating(network), listening(network, own, look):
            for batch, _ in batches:
                call(network, batch)
        seen.append(own)
    inputs, outputs = ({name: torch.cat(parts).double().numpy() for name, parts in own.items()} for own in seen)
    return {name: (inputs[name], outputs[name]) for name in inputs}


def _look(
    of: Callable[[Any, Tensor, Tensor], Tensor],
    seen: Mapping[str, list[Tensor]],
    generators: Mapping[str, torch.Generator],
    points: int,
    name: str,
    layer: nn.Module,
    args: tuple[Tensor, ...],
    output: Tensor,
) -> None:
    flat = of(layer, args[0], output)
    drawn = torch.randint(flat.shape[1], (min(points, flat.shape[1]),), generator=generators[name])
    seen[name].append(flat[:, drawn.to(output.device)].flatten(0, 1).cpu())


def _patches(layer: nn.Conv2d | nn.Linear, batch: Tensor, _: Tensor) -> Tensor:
    """What a layer's outputs are made of, (images, places, channels, k)."""
    if isinstance(layer, nn.Linear):
        return batch.reshape(batch.shape[0], -1, batch.shape[-1], 1)
    padding = layer.padding
    if isinstance(padding, str):  # "same" pads more at the end where the kernel is even
        batch, padding = functional.pad(batch, layer._reversed_padding_repeated_twice), (0, 0)
    columns = functional.unfold(batch, layer.kernel_size, layer.dilation, padding, layer.stride)
    return columns.transpose(1, 2).unflatten(2, (batch.shape[1], -1))


def _outputs(layer: nn.Conv2d | nn.Linear, _: Tensor, output: Tensor) -> Tensor:
    """A layer's outputs, (images, places, channels)."""
    if isinstance(layer, nn.Linear):
        return output.reshape(output.shape[0], -1, output.shape[-1])
    return output.flatten(2).transpose(1, 2)
