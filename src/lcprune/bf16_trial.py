"""What is tried in a child process before bf16 is used on a CPU (`bf16.py`): this may end the process."""

from __future__ import annotations

import copy
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SECONDS = 120  # importing PyTorch takes most of it, on a slow disk or a busy machine
_CONVOLUTIONS = (3, 16, 3, 1), (64, 64, 3, 1), (128, 64, 1, 1), (64, 64, 3, 4), (64, 64, 3, 64)


def main() -> None:
    """The child process: exit code 0 if bf16 works."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a process that may well die leaves no core file
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)  # also when nobody is left who waits
    try_operators()


def try_operators() -> None:
    """Run in bf16 what networks are made of, as searches and training do: this may end the process.

    Raises:
        RuntimeError: an operator is missing, or its result is far from that of float32.
    """
    torch.manual_seed(0)
    for layer, x in _layers():
        for layout in (torch.contiguous_format, _channels_last(x)):
            if x.dim() > 3:
                layer.to(memory_format=layout)  # type: ignore[call-overload]
                x = x.contiguous(memory_format=layout)
            with torch.inference_mode():
                expected = layer(x)
                _compare(layer, copy.deepcopy(layer).bfloat16()(x.bfloat16()), expected)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                output = layer(x.requires_grad_())
            output.float().square().mean().backward()
            _compare(layer, output.detach(), expected)
            x = x.detach()
    left, right = torch.randn(2, 4, 64, 64), torch.randn(2, 4, 64, 64)
    _compare("matmul", left.bfloat16() @ right.bfloat16(), left @ right)
    expected = functional.scaled_dot_product_attention(left, right, right)
    left, right = left.bfloat16(), right.bfloat16()
    _compare("attention", functional.scaled_dot_product_attention(left, right, right), expected)


def _layers() -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """Layers of every kind with an input: few channels, and as many as matrix instructions want."""
    for inputs, outputs, rows in ((3, 10, 2), (64, 64, 8), (512, 512, 32)):
        yield nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    for inputs, outputs, taps, groups in _CONVOLUTIONS:
        yield nn.Conv2d(inputs, outputs, taps, padding=taps // 2, groups=groups), torch.randn(4, inputs, 8, 8)
    for groups in (1, 4, 32):
        yield nn.Conv1d(32, 32, 3, groups=groups), torch.randn(2, 32, 32)
        yield nn.Conv3d(32, 32, 3, groups=groups), torch.randn(1, 32, 4, 4, 4)
        yield nn.ConvTranspose1d(32, 32, 2, stride=2, groups=groups), torch.randn(2, 32, 8)
        yield nn.ConvTranspose2d(32, 32, 2, stride=2, groups=groups), torch.randn(2, 32, 8, 8)
        yield nn.ConvTranspose3d(32, 32, 2, stride=2, groups=groups), torch.randn(1, 32, 4, 4, 4)


def _channels_last(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _compare(what: Any, output: torch.Tensor, expected: torch.Tensor) -> None:
    apart = float((output.float() - expected).abs().max() / expected.abs().max())
    if not apart < 0.05:
        raise RuntimeError(f"{what} in bf16 is {apart:.2g} off")
