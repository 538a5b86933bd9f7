"""Running a network on a batch: how it is called, in which arithmetic, and what its loss is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lcprune.errors import ConfigError


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Run a network on a batch's inputs: a tensor, a tuple of them, or a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


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


@contextlib.contextmanager
def arithmetic(precision: str = "fp32", benchmark: bool = False) -> Iterator[None]:
    """Products in true float32 unless `precision` is "tf32"; what the process was set to comes back after."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision == "tf32"
    cudnn.benchmark = benchmark
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before
