"""One pass over the batches that leaves the network as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import call, need_comparable
from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.progress import Progress
from lcprune.scoring.registry import Context


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and back to its own mode afterwards.

    Batch norm must use and keep its running statistics, or a sample's gradient would depend on the batch that
    it happens to be in. The flags are set directly, since `model.eval()` may be overridden to do more.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def batches(graph: ChannelGraph, context: Context, title: str) -> Iterator[tuple[Any, Any, int]]:
    """The data on the network's device, with a progress bar: (inputs for `call`, target, number of samples)."""
    device = next(graph.model.parameters(), torch.zeros(())).device
    data = context.data if context.data is not None else ()
    total = len(data) if isinstance(data, Sized) else None
    seen = 0
    with Progress(title, total=total, enabled=context.progress) as bar:
        for batch in data:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise MetricError(f"data gave a {type(batch).__name__}: batches of (input, target) are wanted")
            inputs, target = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device, non_blocking=True), list(batch))
            samples = int(pytree.tree_leaves(inputs)[0].shape[0])
            if samples:
                yield inputs, target, samples
            seen += samples
            bar.advance(images=seen)
    if not seen:
        raise MetricError("data holds no batches: a generator can be read only once, so pass a list or a loader")


def total_loss(graph: ChannelGraph, context: Context, inputs: Any, target: Any, samples: int) -> torch.Tensor:
    """The batch's loss summed over its samples, so that it does not matter how data is cut into batches."""
    output = call(graph.model, inputs)
    need_comparable(context.loss_fn, output, target)
    loss = context.loss_fn(output, target)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise MetricError(f"loss_fn gave {shape}: one number, the mean over the batch, is wanted")
    if not loss.requires_grad:
        raise MetricError("the loss has no gradient: loss_fn or the network detaches what it computes")
    return loss.sum() * samples
