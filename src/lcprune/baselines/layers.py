"""What the layers that produce a group's units look like: sizes, strides, shares of the cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lcprune.batches import call
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.passes import evaluating


@dataclass(frozen=True)
class Layer:
    """The first producing layer of a group.

    Attributes:
        inputs: channels that it reads.
        units: of the group.
        height: of its feature map; 1 for a linear layer.
        width: likewise.
        stride: of the convolution.
        kernel: its size along one side.
        cost: multiply-adds that go when the whole group goes.
        coupled: layers that produce the units together (residual sums), depthwise ones not counted.
    """

    inputs: int
    units: int
    height: int
    width: int
    stride: int
    kernel: int
    cost: float
    coupled: int


def layers_of(graph: ChannelGraph) -> list[Layer]:
    """One description per group, in network order."""
    modules = dict(graph.model.named_modules())
    producers = [[m.weight.rpartition(".")[0] for m in group.members if m.role == "out"] for group in graph.groups]
    shapes: dict[str, tuple[int, ...]] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            shapes[name] = tuple(output.shape) if isinstance(output, torch.Tensor) else ()

        return hook

    handles = [modules[name].register_forward_hook(watch(name)) for names in producers for name in set(names)]
    try:
        with evaluating(graph.model), torch.no_grad():
            call(graph.model, graph.example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    found = []
    whole = graph.cost.sizes
    for position, (group, names) in enumerate(zip(graph.groups, producers, strict=True)):
        module = modules[names[0]]
        without = np.where(np.arange(len(whole)) == position, 0, whole)
        height, width = (*shapes.get(names[0], ())[2:4], 1, 1)[:2]
        dense = {name for name in names if getattr(modules[name], "groups", 1) == 1}
        found.append(
            Layer(
                inputs=int(getattr(module, "in_channels", getattr(module, "in_features", 1))),
                units=group.size,
                height=int(height),
                width=int(width),
                stride=_side(getattr(module, "stride", 1)),
                kernel=_side(getattr(module, "kernel_size", 1)),
                cost=float(graph.cost.macs(whole) - graph.cost.macs(without)),
                coupled=len(dense),
            )
        )
    return found


def _side(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple) else value)
