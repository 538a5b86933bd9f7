"""New batch-norm statistics: the first thing that a cut network needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from lcprune.batches import Batch, call


def statistics_of(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms of a network that keep statistics."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return [norm for norm in norms if norm.track_running_stats]


@torch.no_grad()
def renew_statistics(model: nn.Module, batches: Sequence[Batch]) -> None:
    """Replace batch-norm statistics by those of `batches`, in place; all else runs in evaluation mode.

    Every batch counts the same, so a last one of no more than half their size is left out: it would weigh too much, and
    one image may have no variance at all.
    """
    norms = statistics_of(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
        norm.train()
    for batch in batches:
        if 2 * batch.size > batches[0].size:
            call(model, batch.inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
