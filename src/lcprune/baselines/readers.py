"""Layers that read a group's units: what each unit adds to their outputs, and new weights by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lcprune.batches import call
from lcprune.graph.channel_graph import Group
from lcprune.scoring.passes import evaluating

FloatArray = NDArray[np.float64]

_RIDGE = 1e-4  # of the mean square of the inputs: keeps nearly equal channels from cancelling each other
_MOST_NUMBERS = 2**23  # in one matrix of contributions; rows beyond are left out


@dataclass(frozen=True, eq=False)
class Reader:
    """A convolution or linear layer that reads a group.

    Attributes:
        name: of the layer.
        layer: it, in the network whose weights are changed.
        index: (units, k) the input channels that belong to each unit.
    """

    name: str
    layer: nn.Conv2d | nn.Linear
    index: NDArray[np.int64]

    def contributions(self, patches: FloatArray, outputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What each unit adds to each output, and what all of them together should.

        Args:
            patches: (rows, channels, k) inputs.
            outputs: (rows, out) what the layer should give.

        Returns:
            (rows * out, units) and (rows * out,).
        """
        weight = self._weight()
        rows = max(1, min(len(patches), _MOST_NUMBERS // (weight.shape[0] * weight.shape[1])))
        parts = np.einsum("sik,oik->soi", patches[:rows], weight, optimize=True)
        mine = parts[:, :, self.index[:, 0]] if self.index.shape[1] == 1 else parts[:, :, self.index].sum(3)
        wanted = self._wanted(patches[:rows], outputs[:rows], weight)
        return mine.reshape(-1, len(self.index)), wanted.reshape(-1)

    def refit(self, seen: tuple[FloatArray, FloatArray], kept: NDArray[np.int64]) -> None:
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
        numbers: FloatArray = weight.flatten(2).numpy() if weight.ndim > 2 else weight[:, :, None].numpy()
        return numbers.copy()

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
        layer = modules[name]
        plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        )
        if member.role == "in" and leaf == "weight" and member.dim == 1 and plain:
            assert isinstance(layer, (nn.Conv2d, nn.Linear))
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
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """What the readers get in `model`, and what they gave in the original network, at the same random places.

    Returns:
        Layer name -> ((rows, channels, k) inputs, (rows, out) outputs).
    """
    names = {reader.name for reader in readers}
    inputs: dict[str, list[Tensor]] = {name: [] for name in names}
    outputs: dict[str, list[Tensor]] = {name: [] for name in names}

    def hook(name: str, patches: bool) -> Any:
        # Both networks draw from generators in the same state, so that they look at the same places.
        generator = torch.Generator().manual_seed(seed)

        def look(layer: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
            places = output[0, 0].numel() if isinstance(layer, nn.Conv2d) else output[0, ..., 0].numel()
            drawn = torch.randint(places, (min(points, places),), generator=generator).to(output.device)
            if patches:
                inputs[name].append(_patches(layer, args[0])[:, drawn].flatten(0, 1).cpu())
            else:
                flat = output.flatten(2).transpose(1, 2) if isinstance(layer, nn.Conv2d) else _rows(output)
                outputs[name].append(flat[:, drawn].flatten(0, 1).cpu())

        return look

    for network, patches in ((original, False), (model, True)):
        modules = dict(network.named_modules())
        handles = [modules[name].register_forward_hook(hook(name, patches)) for name in sorted(names)]
        try:
            with evaluating(network):
                for batch, _ in batches:
                    call(network, batch)
        finally:
            for handle in handles:
                handle.remove()
    return {name: (_numbers(inputs[name]), _numbers(outputs[name])) for name in names}


def _patches(layer: nn.Conv2d | nn.Linear, batch: Tensor) -> Tensor:
    """(images, places, channels, k)."""
    if isinstance(layer, nn.Linear):
        return _rows(batch)[..., None]
    padding = layer.padding
    if isinstance(padding, str):  # "same" pads more at the end where the kernel is even
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        batch = functional.pad(
            batch, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
        )
        padding = (0, 0)
    columns = functional.unfold(batch, layer.kernel_size, layer.dilation, padding, layer.stride)
    return columns.transpose(1, 2).unflatten(2, (batch.shape[1], -1))


def _rows(batch: Tensor) -> Tensor:
    return batch.reshape(batch.shape[0], -1, batch.shape[-1])


def _numbers(parts: list[Tensor]) -> FloatArray:
    numbers: FloatArray = torch.cat(parts).double().numpy()
    return numbers
