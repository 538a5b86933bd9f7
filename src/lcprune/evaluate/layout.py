"""Whether a network runs in another memory layout or precision than the user's own: not every network does."""

from __future__ import annotations

import copy
import logging

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, call

logger = logging.getLogger("lcprune")


def runs(model: nn.Module, batch: Batch, channels_last: bool = False, bf16: bool = False) -> bool:
    """Try a copy of the network on two images.

    `x.view(...)` refuses channels-last activations, and numbers that a network makes for itself in float32 do not go
    with bf16 weights.

    Args:
        model: left untouched.
        batch: images to try.
        channels_last: in this memory layout.
        bf16: with weights and images in this precision.
    """
    few = Batch(pytree.tree_map(lambda leaf: leaf[:2], batch.inputs), None, min(2, batch.size))
    model = copy.deepcopy(model).eval()
    try:
        if channels_last:  # 3-D convolutions have no such layout
            few = few.channels_last()
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if bf16:
            few = few.bfloat16()
            model.to(torch.bfloat16)
        with torch.inference_mode():
            call(model, few.inputs)
    except Exception as error:
        logger.info("not %s: %s", "in bf16" if bf16 else "channels last", str(error).split("\n")[0])
        return False
    return True
