"""How far the outputs of two networks are apart, without labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import Batch, call
from lcprune.errors import DataError
from lcprune.graph.outputs import leaves, tensors

_MOST = 4096  # numbers of an output that are compared, for each image
_SAME = 1e-10  # of the squares: less is rounding


def relative(reference: Tensor, other: Tensor) -> Tensor:
    """Squared difference, as a share of how much the reference differs from image to image.

    Where all images give the same, as a share of the reference's squares.
    """
    reference, other = reference.float(), other.float()
    return (other - reference).square().sum() / spread_of(reference)


def spread_of(reference: Tensor) -> Tensor:
    """Squared differences from the mean of all images, or the squares where all images give the same."""
    spread, squares = (reference - reference.mean(0)).square().sum(), reference.square().sum()
    return torch.where(spread > _SAME * squares, spread, squares) + torch.finfo(torch.float32).tiny


def rows_of(output: Any, images: int) -> list[Tensor]:
    """Every output tensor with numbers, one row per image, in float32; of large ones every so-many-th number."""
    found = (tensor for tensor in tensors(leaves(output)) if tensor.is_floating_point() and tensor.numel())
    rows = [_by_image(tensor, images) for tensor in found]
    return [row[:, :: -(-row.shape[1] // _MOST)].float() for row in rows]


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
    parts = [rows_of(call(model, batch.inputs), batch.size) for batch in batches]
    if len({len(part) for part in parts}) != 1:
        return []
    same = (rows for rows in zip(*parts, strict=True) if len({row.shape[1] for row in rows}) == 1)
    return [torch.cat(rows) for rows in same]


def _by_image(tensor: Tensor, images: int) -> Tensor:
    """One row per image; one in all of what cannot be shared out among them."""
    return tensor.reshape(images if tensor.numel() % images == 0 else 1, -1)
