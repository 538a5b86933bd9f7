"""Weights of CIFAR ResNets whose shortcuts put the zero channels on both sides.

Several well-known trainings of these networks pad half of the new channels before the existing ones and half
after. Names and shapes are the same, so such a file loads without complaint and computes nonsense. The two
networks differ by an order of the channels of each stage, which can be applied to the weights once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lcprune.errors import ModelError
from lcprune.models.weights import unwrap


def from_centred(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights for our ResNets from weights of ones with centred shortcuts.

    Args:
        state: state dict of a ResNet-20 ... 110 with names as ours (`layer2.0.conv1.weight` ...).

    Returns:
        The same network with its channels in our order.
    """
    weights = unwrap(state)
    orders: dict[int, Tensor] = {}
    try:
        order = torch.arange(len(weights["bn1.weight"]))
        for stage in (1, 2, 3):
            width = len(weights[f"layer{stage}.0.bn2.weight"])
            # Their channel at each of our places: the existing ones first, then the zeros of either side.
            before = (width - len(order)) // 2
            taken = before + order
            rest = torch.tensor([c for c in range(width) if not before <= c < before + len(order)], dtype=torch.int64)
            order = torch.cat([taken, rest])
            orders[stage] = order
        converted = dict(weights)
        for name, tensor in weights.items():
            parts = name.split(".")
            if name == "linear.weight":
                converted[name] = tensor[:, orders[3]]
            elif parts[0].startswith("layer") and tensor.dim():
                stage, block, layer = int(parts[0][5:]), int(parts[1]), parts[2]
                if layer in ("conv2", "bn2"):
                    converted[name] = tensor[orders[stage]]
                elif layer == "conv1":
                    converted[name] = tensor[:, orders[stage if block else max(stage - 1, 1)]]
    except KeyError as error:
        raise ModelError(f"not the weights of a CIFAR ResNet: {error} is missing") from None
    return converted
