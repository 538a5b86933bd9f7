"""A backend that takes as long as it is told to, so that nothing depends on how busy a machine is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from lcprune.latency import Backend


def weights(model: nn.Module) -> float:
    """How many weights a network has, in thousands."""
    return sum(parameter.numel() for parameter in model.parameters()) / 1000


class Pretend(Backend):
    """Runs nothing; a network takes `ms(network)`.

    Attributes:
        timed: the networks that it was given.
    """

    name = "pretend"

    def __init__(self, ms: Callable[[nn.Module], float] = weights) -> None:
        super().__init__("cpu")
        self.ms, self.timed = ms, []

    def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        assert not model.training and isinstance(inputs, tuple)
        self.timed.append(model)
        return lambda: self.ms(model)

    def seconds(self, run: Callable[[], Any], repeats: int) -> float:
        return float(run()) / 1000


@pytest.fixture
def pretend() -> type[Pretend]:
    """The backend's class."""
    return Pretend
