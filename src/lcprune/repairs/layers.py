"""Layers as matrices: weights by group, inputs as rows of channels, and the patches that outputs are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

Layer = _ConvNd | nn.Linear

_PLACES = 32  # of a feature map that a refit looks at, at least
_LOOKED, _LOOKED_WIDE = 25_600, 64  # places of all images together, at least; and for each input and tap

_TORCHS: tuple[type[Layer], ...] = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_MOST = 4096  # channels whose covariance is kept as it is; behind a flatten, the places of a channel share one


@dataclass(frozen=True, eq=False)
class Columns:
    """Which columns of a layer's weight a cut leaves, group by group.

    Attributes:
        source: (groups,) of each group that is left, its number in the whole layer.
        inputs: (groups, kept) the channels that it reads, counted in the whole input, in their new order.
        outputs: (outputs,) the channels that the layer still gives, counted in the whole output, in their new order.
        taps: features of a linear layer that are the places of one channel, behind a flatten; otherwise 1.
    """

    source: Tensor
    inputs: Tensor
    outputs: Tensor
    taps: int = 1


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """Modules that multiply their input channels with a weight of their own: convolutions and linear layers."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, Layer))
    return {name: module for name, module in found if isinstance(module._parameters.get("weight"), Tensor)}


def groups_of(layer: Layer) -> int:
    """Groups of a convolution; 1 for a linear layer."""
    return layer.groups if isinstance(layer, _ConvNd) else 1


def is_transposed(layer: Layer) -> bool:
    """Whether it is a transposed convolution, whose weight has its inputs first."""
    return isinstance(layer, _ConvNd) and layer.transposed


def is_plain(layer: Layer) -> bool:
    """Whether it runs PyTorch's own code, not a forward of its own."""
    kind = type(layer)
    return "forward" not in vars(layer) and any(
        kind.forward is torchs.forward
        and getattr(kind, "_conv_forward", None) is getattr(torchs, "_conv_forward", None)
        for torchs in _TORCHS
    )


def columns_after(layer: Layer, cuts: Mapping[int, NDArray[np.int64]], places: int = 1) -> Columns | str:
    """What is left of a layer with these cuts of its weight; words if it cannot be repaired.

    `places` are those of a channel that a flatten before the layer has laid side by side, if any was seen.
    """
    groups, (_, given, reads, taps) = groups_of(layer), matrix(layer).shape
    if isinstance(layer, nn.Linear) and reads > _MOST:
        taps = _together(reads, cuts.get(1))
        taps = places if taps % places == 0 and reads // places <= _MOST else taps
        if reads // taps > _MOST:
            return f"it reads {reads} features: their covariance does not fit"
        cuts = {**cuts, **({1: cuts[1][::taps] // taps} if 1 in cuts else {})}
        reads //= taps
    else:
        taps = 1
    if is_transposed(layer):
        inputs = _by_group(cuts.get(0, np.arange(groups * reads)), reads)
        source = inputs[:, 0] // reads
        outputs = source[:, None] * given + cuts.get(1, np.arange(given))
    else:
        outputs = _by_group(cuts.get(0, np.arange(groups * given)), given)
        source = outputs[:, 0] // given
        inputs = source[:, None] * reads + cuts.get(1, np.arange(reads))
    if (inputs // reads != source[:, None]).any() or (outputs // given != source[:, None]).any():
        return "its groups lose different numbers of channels"
    return Columns(torch.tensor(source), torch.tensor(inputs), torch.tensor(outputs.reshape(-1)), taps)


def _by_group(channels: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Channels that are left, one row per group that has some."""
    left = len(np.unique(channels // size))
    # Groups of different lengths get rows that cross their borders, which `columns_after` refuses.
    return channels.reshape(left, -1) if not len(channels) % left else channels[None]


def _together(features: int, kept: NDArray[np.int64] | None) -> int:
    """The most neighbouring features that always stay or go together."""
    if kept is None:
        return features
    stays = np.zeros(features, dtype=np.int8)
    stays[kept] = 1
    return math.gcd(features, *(np.flatnonzero(np.diff(stays)) + 1).tolist())


def matrix(layer: Layer, taps: int = 1) -> Tensor:
    """The weight as (groups, outputs, inputs, taps), in double precision."""
    weight = layer.weight.detach().double()
    if isinstance(layer, nn.Linear):
        return weight.unflatten(1, (-1, taps))[None]
    weight = weight.flatten(2).unflatten(0, (layer.groups, -1))
    return weight.transpose(1, 2) if layer.transposed else weight


def write(layer: Layer, weight: Tensor) -> None:
    """Put a matrix back as the layer's weight."""
    if is_transposed(layer):
        weight = weight.transpose(1, 2)
    with torch.no_grad():
        layer.weight.copy_(weight.reshape(layer.weight.shape))


def coverage(layer: _ConvNd, size: tuple[int, ...]) -> Tensor:
    """Of every tap of a convolution, the share of outputs for which it lies on the input: not on padding or a stride.

    `size` is that of the feature map.
    """
    # In half precision, whole numbers end early; a forward of its own may have more numbers than these two.
    dtype = torch.promote_types(layer.weight.dtype, torch.float32) if is_plain(layer) else layer.weight.dtype
    weight = layer.weight.detach().to(dtype).requires_grad_()
    numbers = {"weight": weight} | ({} if layer.bias is None else {"bias": layer.bias.detach().to(dtype)})
    channels = len(weight) if layer.transposed else layer.groups * weight.shape[1]
    with torch.enable_grad():
        outputs = functional_call(layer, numbers, (weight.new_ones(1, channels, *size),))
        (counts,) = torch.autograd.grad(outputs.sum(), weight)
    return counts[0, 0].flatten().double() / outputs[0, 0].numel()


def size_of(layer: Layer, inputs: Tensor) -> tuple[int, ...]:
    """Of what a layer reads: images first, then all but channels."""
    return (*inputs.shape[:-1],) if isinstance(layer, nn.Linear) else (len(inputs), *inputs.shape[2:])


def places_of(layer: Layer, images: int) -> int:
    """How many places of each feature map a refit looks at: more for wide layers, and where images are few."""
    return max(_PLACES, max(_LOOKED, _LOOKED_WIDE * layer.weight[0].numel()) // images)


def at_places(layer: Layer, values: Tensor, most: int, taps: int = 1) -> Tensor:
    """A layer's input or output as (images, channels, places), at some places of the feature map."""
    if isinstance(layer, nn.Linear):
        flat = values.reshape(values.shape[0], -1, values.shape[-1] // taps, taps)
        values = flat.transpose(1, 2)
    values = values.flatten(2)
    return values[:, :, some_places(values.shape[2], most, values.device)]


def some_places(count: int, most: int, device: torch.device) -> Tensor:
    """Positions of a feature map that are looked at: the same for every image and network."""
    if count <= most:
        return torch.arange(count, device=device)
    generator = torch.Generator().manual_seed(count)
    return torch.randperm(count, generator=generator)[:most].sort().values.to(device)


def patches(layer: Layer, inputs: Tensor, most: int) -> Tensor:
    """What the outputs at some places are made of: (images * places, channels, taps); of no transposed convolution."""
    if isinstance(layer, nn.Linear):
        return at_places(layer, inputs, most).transpose(1, 2).flatten(0, 1)[..., None]
    sides = layer._reversed_padding_repeated_twice
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        sides = [side for side in reversed(layer.padding) for _ in range(2)]  # some networks set it again
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, sides, mode=mode) if any(sides) else inputs
    sizes, axes = padded.shape[2:], len(layer.kernel_size)
    index = torch.arange(math.prod(sizes), device=inputs.device).view(sizes)
    for axis, (size, step, apart) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        index = index.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
    index = index.flatten(axes).flatten(0, axes - 1)  # (places, taps)
    index = index[some_places(len(index), most, index.device)]
    # Whole rows of channels are copied, not numbers one by one.
    chosen = padded.flatten(2).transpose(1, 2).contiguous()[:, index.flatten()]  # (images, places * taps, channels)
    return chosen.view(-1, index.shape[1], padded.shape[1]).transpose(1, 2)
