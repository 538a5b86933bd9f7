"""Running a network on a batch: how it is called, in which arithmetic, and what its loss is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lcprune.errors import ConfigError

Inputs = tuple[Any, ...] | dict[str, Any]


def arguments(inputs: Any) -> Inputs:
    """What a network is called with: a mapping has keyword arguments; a tensor alone, or a tuple, positional ones."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Run a network on a batch's inputs: a tensor, a tuple of them, or a dict of keyword arguments."""
    given = arguments(inputs)
    return model(**given) if isinstance(given, dict) else model(*given)


def loss_of(loss_fn: Callable[[Any, Any], Any], output: Any, target: Any) -> torch.Tensor:
    """The loss of a batch.

    Raises:
        ConfigError: `loss_fn` does not give one number.
    """
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
