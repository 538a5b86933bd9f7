"""What all kernels need."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = tl = None

__all__ = ["LAST", "available", "compiled", "power", "tl", "triton"]

LAST = torch.channels_last


def available() -> bool:
    """Whether kernels can be made here."""
    return triton is not None


@cache
def compiled(function: Callable[..., None]) -> Any:
    """The kernel that a function describes; compiled when it first meets sizes."""
    return triton.jit(function)


def power(value: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (value - 1).bit_length()
