"""What an entry of the zoo is, and the decorator that enters one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

SMALL = (2, 3, 8, 8)


@dataclass(frozen=True)
class Entry:
    """One small network and what a trace of it must find.

    Layers are named by module, bare parameters by their own name.

    Attributes:
        name: the network's class name.
        factory: builds it; same weights at every call, evaluation mode.
        shapes: shapes of the example inputs.
        prunable: layers that must be cut by some group.
        frozen: layers that no group may cut.
        pinned: layer -> output positions that no group may cut.
        units: layer -> least number of units of its group: coupling must not be coarser than needed.
        mixing: layers whose group must be marked as one where silencing is not removal; no other may be.
        may_refuse: the specification allows a TraceError instead.
    """

    name: str
    factory: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    prunable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    pinned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    mixing: tuple[str, ...] = ()
    may_refuse: bool = False

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Random example inputs."""
        generator = torch.Generator().manual_seed(seed + zlib.crc32(self.name.encode()))
        return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)


ZOO: dict[str, Entry] = {}


def enter(*shapes: tuple[int, ...], **expectations: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a network class without constructor arguments, with input shapes and expectations."""

    def decorate(network: type[nn.Module]) -> type[nn.Module]:
        name = network.__name__
        if name in ZOO:
            raise ValueError(f"two entries are called {name}")

        def factory() -> nn.Module:
            return seeded(network, name)

        ZOO[name] = Entry(name, factory, shapes or (SMALL,), **expectations)
        return network

    return decorate


def seeded(network: Callable[[], nn.Module], name: str) -> nn.Module:
    """Build a network with weights that depend on `name` only, and are non-trivial everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(name.encode()))
        return randomise(network()).eval()


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Give biases, scales and running statistics values that a wrong cut would expose."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight_g") or ".original" in name:
            continue
        if parameter.ndim <= 1 or parameter.numel() == max(parameter.shape):
            # Away from zero, so that no channel is invisible; both signs for biases and scales.
            values = 0.5 + torch.rand_like(parameter)
            signs = torch.where(torch.rand_like(parameter) < 0.5, -1.0, 1.0)
            parameter.copy_(values * signs)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.5 * torch.randn_like(buffer))
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand_like(buffer))
    return model
