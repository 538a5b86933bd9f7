"""How far the outputs of two networks are apart, without labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lcprune.errors import DataError
from lcprune.evaluate.draw import Batch
from lcprune.evaluate.prepare import call
from lcprune.graph.outputs import leaves, tensors

_MOST = 4096  # numbers of an output that are compared, for each image


def relative(reference: Tensor, other: Tensor) -> Tensor:
    """Squared difference, as a share of how much the reference differs from image to image."""
    reference, other = reference.float(), other.float()
    spread = (reference - reference.mean(0)).square().sum()
    scale = spread if len(reference) > 1 else reference.square().sum()
    return (other - reference).square().sum() / (scale + torch.finfo(torch.float32).tiny)


class Distance:
    """Compares networks with a reference on some images.

    Args:
        whole: the reference, in evaluation mode.
        batches: the images.

    Raises:
        DataError: its outputs are not finite, or it has none that can be compared.
    """

    def __init__(self, whole: nn.Module, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.expected = _outputs(whole, batches)
        if not self.expected:
            raise DataError("the network returns no numbers to compare: give a network that returns tensors")
        if not all(bool(output.isfinite().all()) for output in self.expected):
            raise DataError("the network's outputs on these images are not finite: look at the images")

    def __call__(self, other: nn.Module) -> float:
        """Mean relative squared difference over all outputs; infinite if they cannot be compared."""
        found = _outputs(other, self.batches)
        if [output.shape for output in found] != [output.shape for output in self.expected]:
            return math.inf
        apart = float(torch.stack([relative(*pair) for pair in zip(self.expected, found, strict=True)]).mean())
        return apart if math.isfinite(apart) else math.inf


@torch.no_grad()
def _outputs(model: nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
    """Every output of all images, one row per image; of large ones every so-many-th number."""
    parts = []
    for batch in batches:
        found = [tensor for tensor in tensors(leaves(call(model, batch.inputs))) if tensor.is_floating_point()]
        rows = [
            tensor.reshape(batch.size, -1) if tensor.numel() % batch.size == 0 else tensor[None] for tensor in found
        ]
        parts.append([row[:, :: -(-row.shape[1] // _MOST)].float() for row in rows if row.numel()])
    if len({tuple(row.shape[1] for row in part) for part in parts}) != 1:
        return []
    return [torch.cat(rows) for rows in zip(*parts, strict=True)]
