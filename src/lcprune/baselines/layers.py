"""What the layers that produce a group's units look like: sizes, strides, shares of the cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lcprune.batches import call
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.passes import evaluating


class LayerDescription(NamedTuple):
    """The first producing layer of a group."""

    units: int
    inputs: int  # channels that it reads
    height: int  # of its feature map; 1 for a linear layer
    width: int
    stride: int
    kernel: int  # its size along one side
    cost: float  # multiply-adds that go when the whole group goes
    coupled: int  # layers that produce the units together (residual sums), depthwise ones not counted


def describe_layers(graph: ChannelGraph) -> list[LayerDescription]:
    """One description per group, in network order."""
    modules = dict(graph.model.named_modules())
    producers = [[modules[m.weight.rpartition(".")[0]] for m in g.members if m.role == "out"] for g in graph.groups]
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        shapes[module] = tuple(output.shape) if isinstance(output, torch.Tensor) else ()

    handles = [layers[0].register_forward_hook(look) for layers in producers]
    try:
        with evaluating(graph.model), torch.no_grad():
            call(graph.model, graph.example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    whole = graph.cost.sizes
    found = []
    for position, layers in enumerate(producers):
        first = layers[0]
        without = np.where(np.arange(len(whole)) == position, 0, whole)
        height, width = (*shapes.get(first, ())[2:4], 1, 1)[:2]
        found.append(
            LayerDescription(
                units=int(whole[position]),
                inputs=int(getattr(first, "in_channels", getattr(first, "in_features", 1))),
                height=int(height),
                width=int(width),
                stride=_side(getattr(first, "stride", 1)),
                kernel=_side(getattr(first, "kernel_size", 1)),
                cost=float(graph.cost.macs(whole) - graph.cost.macs(without)),
                coupled=len({layer for layer in layers if getattr(layer, "groups", 1) == 1}),
            )
        )
    return found


def _side(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple) else value)
