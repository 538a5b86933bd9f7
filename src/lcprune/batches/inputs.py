"""Inputs of a network: how it is called with them, in which arithmetic; what one looks like, and random ones.

Shapes are as people write them in a model file, and as JSON keeps them:

(3, 224, 224)                               one float32 tensor
((3, 64, 64), (10,))                        two arguments
{"image": (3, 64, 64), "where": ("int64",)} keyword arguments; a shape may end in a type
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lcprune.errors import ConfigError, DataError, ModelError

Inputs = tuple[Any, ...] | dict[str, Any]
Shape = Any  # a sequence of sizes, or a sequence or mapping of shapes


def arguments(inputs: Any) -> Inputs:
    """What a network is called with: a mapping has keyword arguments; a tensor alone, or a tuple, positional ones."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Run a network on a batch's inputs: a tensor, a tuple of them, or a dict of keyword arguments."""
    given = arguments(inputs)
    return model(**given) if isinstance(given, dict) else model(*given)


def to_device(inputs: Any, device: torch.device | str) -> Any:
    """Tensors of a nest on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device, non_blocking=True), inputs)


@contextlib.contextmanager
def arithmetic(precision: str = "fp32") -> Iterator[None]:
    """Products in true float32 unless `precision` is "tf32"; what the process was set to comes back after."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision == "tf32"
    cudnn.benchmark = False  # kernels chosen by the clock would make losses differ between runs
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def need_comparable(loss_fn: Callable[[Any, Any], Any], output: Any, target: Any) -> None:
    """Refuse what cross-entropy cannot compare because it is no tensor; other losses may know what to do with it."""
    known = type(loss_fn) is torch.nn.CrossEntropyLoss or loss_fn is torch.nn.functional.cross_entropy
    for name, value in (("outputs", output), ("targets", target)):
        if known and not isinstance(value, torch.Tensor):
            keys = f" of {', '.join(map(repr, value))}" if isinstance(value, Mapping) else ""
            raise DataError(
                f"cross-entropy cannot compare {name} that are a {type(value).__name__}{keys}: give a loss with "
                "lcprune.Evaluation(data, loss_fn=...), or inputs alone"
            )


def loss_of(loss_fn: Callable[[Any, Any], Any], output: Any, target: Any) -> torch.Tensor:
    """The loss of a batch.

    Raises:
        DataError: it is cross-entropy, and there is something else to compare than tensors.
        ConfigError: `loss_fn` does not give one number.
    """
    need_comparable(loss_fn, output, target)
    loss = torch.as_tensor(loss_fn(output, target))
    if loss.numel() != 1:
        raise ConfigError(
            f"loss_fn gave a tensor of shape {tuple(loss.shape)}, not one number: let it give the mean over the batch"
        )
    return loss.detach().reshape(())


def random_like(inputs: Any, scale: float = 1.0, seed: int = 0) -> Any:
    """Random inputs of the same shapes and types; whole numbers from the range of the example's, truth values kept."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return scale * torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
        if tensor.dtype == torch.bool or tensor.numel() == 0:
            return tensor
        low, high = int(tensor.min()), int(tensor.max())
        return torch.randint(low, high + 1, tensor.shape, dtype=tensor.dtype, generator=generator)

    return pytree.tree_map_only(torch.Tensor, draw, inputs)


def shape_of(inputs: Any) -> Shape:
    """The shape of a batch's inputs, without the batch, as plain JSON."""
    if isinstance(inputs, torch.Tensor):
        kind = [] if inputs.dtype == torch.float32 else [str(inputs.dtype).removeprefix("torch.")]
        return [*inputs.shape[1:], *kind]
    if isinstance(inputs, Mapping):
        return {name: shape_of(value) for name, value in inputs.items()}
    return [shape_of(value) for value in inputs]


def shape_text(shape: Shape) -> str:
    """A shape as people say it: 3x8x8."""
    if isinstance(shape, Mapping):
        return ", ".join(f"{name} {shape_text(value)}" for name, value in shape.items())
    return "x".join(map(str, shape)) if _is_one(shape) else " and ".join(map(shape_text, shape))


def example_of(shape: Shape, batch_size: int = 1) -> Any:
    """Random inputs of a shape, always the same ones; whole numbers are 0 or 1."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: Shape) -> Any:
        if isinstance(shape, Mapping):
            return {str(name): draw(value) for name, value in shape.items()}
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise ModelError(f"{shape!r} is no shape: write e.g. (3, 224, 224), or a tuple or dict of such")
        if not _is_one(shape):
            return tuple(map(draw, shape))
        sizes, kind = [size for size in shape if isinstance(size, int)], torch.float32
        if len(sizes) < len(shape):
            named = shape[-1]
            found = named if isinstance(named, torch.dtype) else getattr(torch, str(named), None)
            if not isinstance(found, torch.dtype):
                raise ModelError(f"INPUT_SHAPE: {named!r} is no type of a tensor: write e.g. 'int64'")
            kind = found
        if kind.is_floating_point or kind.is_complex:
            return torch.randn(batch_size, *sizes, generator=generator).to(kind)
        return torch.randint(2, (batch_size, *sizes), generator=generator).to(kind)

    return draw(shape)


def _is_one(shape: Sequence[Any]) -> bool:
    """Whether it is the shape of one tensor: sizes, and perhaps a type."""
    *sizes, last = shape or [1]
    return all(isinstance(size, int) for size in sizes) and isinstance(last, (int, str, torch.dtype))
