"""What one input of a network looks like: shapes as people write them in a model file, and as JSON keeps them.

(3, 224, 224)                               one float32 tensor
((3, 64, 64), (10,))                        two arguments
{"image": (3, 64, 64), "where": ("int64",)} keyword arguments; a shape may end in a type
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lcprune.errors import ModelError

Shape = Any  # a sequence of sizes, or a sequence or mapping of shapes


def shape_of(inputs: Any) -> Shape:
    """The shape of a batch's inputs, without the batch, as plain JSON."""
    if isinstance(inputs, torch.Tensor):
        kind = [] if inputs.dtype == torch.float32 else [str(inputs.dtype).removeprefix("torch.")]
        return [*inputs.shape[1:], *kind]
    if isinstance(inputs, Mapping):
        return {name: shape_of(value) for name, value in inputs.items()}
    return [shape_of(value) for value in inputs]


def example_of(shape: Shape, batch_size: int = 1) -> Any:
    """Random inputs of a shape, always the same ones; whole numbers are 0 or 1.

    Raises:
        ModelError: it is no shape.
    """
    return _draw(shape, batch_size, torch.Generator().manual_seed(0))


def shape_text(shape: Shape) -> str:
    """A shape as people say it: 3x8x8."""
    if isinstance(shape, Mapping):
        return ", ".join(f"{name} {shape_text(value)}" for name, value in shape.items())
    return "x".join(map(str, shape)) if _is_one(shape) else " and ".join(map(shape_text, shape))


def to_device(inputs: Any, device: torch.device | str) -> Any:
    """Tensors of a nest on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device, non_blocking=True), inputs)


def _draw(shape: Shape, batch: int, generator: torch.Generator) -> Any:
    if isinstance(shape, Mapping):
        return {str(name): _draw(value, batch, generator) for name, value in shape.items()}
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise ModelError(f"{shape!r} is no shape: write e.g. (3, 224, 224), or a tuple or dict of such")
    if not _is_one(shape):
        return tuple(_draw(value, batch, generator) for value in shape)
    kind = torch.float32
    if shape and not isinstance(shape[-1], int):
        *shape, named = shape
        found = named if isinstance(named, torch.dtype) else getattr(torch, str(named), None)
        if not isinstance(found, torch.dtype):
            raise ModelError(f"INPUT_SHAPE: {named!r} is no type of a tensor: write e.g. 'int64'")
        kind = found
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(batch, *shape, generator=generator).to(kind)
    return torch.randint(2, (batch, *shape), generator=generator).to(kind)


def _is_one(shape: Sequence[Any]) -> bool:
    """Whether it is the shape of one tensor: sizes, and perhaps a type."""
    *sizes, last = shape or [1]
    return all(isinstance(size, int) for size in sizes) and isinstance(last, (int, str, torch.dtype))
