"""Labels: which channel every element of a tensor belongs to.

Each position along each dimension of each weight is an *atom*, a non-negative integer. A tensor carries *layers*:
integer tensors of the same rank that say, element by element, which atom the element goes with. A layer has
length 1 along the dimensions where it is constant (batch, space), so it stays small. An activation usually has
one layer (its channels); a weight has one per dimension, since an element goes when its row or its column goes.

Padding and other values without a weight behind them get *phantom* atoms, which are negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lcprune.graph.site import CodeSite

Use = tuple[CodeSite, str, str, tuple[Any, ...]]  # where an operator ran, in which module, its name, its numbers


@dataclass(frozen=True, eq=False)
class Taken:
    """Where in the code `part` was taken by position out of `whole`."""

    site: CodeSite
    whole: Tensor
    part: Tensor


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known about a tensor's elements.

    Attributes:
        layers: int64 tensors of the tensor's rank, length 1 where constant.
        uniform: all elements are equal (zeros, a filled tensor), so any of them may go.
        weight: computed from parameters and buffers alone.
        constant: dimensions along which one slice was repeated, so that any of the copies may go.
        places: layers in which the values are places (argmax): whoever reads them needs every channel where it is.
        taken: what was just taken by position out of what.
    """

    layers: tuple[Tensor, ...] = ()
    uniform: bool = False
    weight: bool = False
    constant: frozenset[int] = frozenset()
    places: tuple[Tensor, ...] = ()
    taken: tuple[Taken, ...] = ()

    def moved(self, layers: Sequence[Tensor]) -> Labels:
        """The same value with its elements elsewhere."""
        return replace(self, layers=tuple(layers), constant=frozenset(), places=(), taken=())


PLAIN = Labels()
UNIFORM = Labels(uniform=True)


def varying(layer: Tensor) -> frozenset[int]:
    """The dimensions along which a layer is not constant."""
    return frozenset(dim for dim, length in enumerate(layer.shape) if length > 1)


def squeeze_strides(layer: Tensor) -> Tensor:
    """Length 1 for every dimension that a view op left with stride 0, also if a tensor without elements lies there."""
    shape = [1 if stride == 0 else length for length, stride in zip(layer.shape, layer.stride(), strict=True)]
    return layer if shape == list(layer.shape) else layer.as_strided(shape, layer.stride())


def squeeze_constant(layer: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """Length 1 for every dimension (of `dims`) along which the labels do not change."""
    for dim in range(layer.ndim) if dims is None else dims:
        if layer.shape[dim] > 1:
            first = layer.narrow(dim, 0, 1)
            if bool((layer == first).all()):
                layer = first
    return layer


def reshape_layer(layer: Tensor, old: Sequence[int], new: Sequence[int]) -> tuple[Tensor | None, list[list[int]]]:
    """Carry a layer through `view`: only blocks of dimensions in which it varies are laid out in full.

    Returns the layer after (None if it cannot be told, since the tensor has no elements), and for every block of
    dimensions that were merged or split and in which the layer varies, the new dimensions of the block.
    """
    if not math.prod(old):  # no elements: one in place of none along each such dimension
        old, new = [length or 1 for length in old], [length or 1 for length in new]
        if math.prod(old) != math.prod(new):
            return None, []
    before, after = [1] * len(old), [1] * len(new)
    blocks: list[list[int]] = []
    for dims_in, dims_out in _blocks(old, new):
        if any(length > 1 for length in layer.shape[dims_in]):
            before[dims_in], after[dims_out] = old[dims_in], new[dims_out]
            blocks.append(list(range(dims_out.start, dims_out.stop)))
    result = layer.expand(before).reshape(after)
    return squeeze_constant(result, [dim for block in blocks for dim in block]), blocks


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Pair the smallest runs of old and new dimensions that hold the same number of elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        first_in, first_out = i, j
        size_in = size_out = 1
        if i < len(old):
            size_in, i = old[i], i + 1
        if j < len(new) and not (size_in == 1 and new[j] != 1 and i > first_in):
            size_out, j = new[j], j + 1
        while size_in != size_out:
            if size_in < size_out and i < len(old):
                size_in, i = size_in * old[i], i + 1
            else:
                size_out, j = size_out * new[j], j + 1
        yield slice(first_in, i), slice(first_out, j)


def pad_rank(layer: Tensor, ndim: int) -> Tensor:
    """Prepend dimensions of length 1, as broadcasting does."""
    return layer.reshape((1,) * (ndim - layer.ndim) + tuple(layer.shape)) if layer.ndim < ndim else layer
