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


def divergence(reference: Tensor, other: Tensor) -> Tensor:
    """Kullback and Leibler's, of the probabilities that two rows of scores per image mean; the mean over images."""
    expected, found = reference.float().log_softmax(1), other.float().log_softmax(1)
    return nn.functional.kl_div(found, expected, reduction="batchmean", log_target=True)


def scores_classes(output: Any, images: int) -> bool:
    """Whether this can be scores of classes: one tensor, one row per image."""
    found = tensors(leaves(output))
    if len(found) != 1 or not found[0].is_floating_point() or found[0].ndim != 2:
        return False
    return len(found[0]) == images and found[0].shape[1] > 1


def spread_of(reference: Tensor) -> Tensor:
    """Squared differences from the mean of all images, or the squares where all images give the same."""
    spread, squares = (reference - reference.mean(0)).square().sum(), reference.square().sum()
    return torch.where(spread > _SAME * squares, spread, squares) + torch.finfo(torch.float32).tiny


def rows_of(output: Any, images: int, every: bool = False) -> list[Tensor]:
    """Every output tensor with numbers, one row per image, in float32: `every` number, or some of many."""
    found = [tensor for tensor in tensors(leaves(output)) if tensor.is_floating_point() and tensor.numel()]
    # One row in all of what cannot be shared out among the images.
    rows = [tensor.reshape(images if tensor.numel() % images == 0 else 1, -1) for tensor in found]
    return [row[:, :: 1 if every else -(-row.shape[1] // _MOST)].float() for row in rows]


class Distance:
    """Compares networks with the whole one, in evaluation mode, on some images.

    `measure` says what is computed: the "divergence" of scores of `classes`, one row per image, else the "distance".

    Raises:
        DataError: its outputs are not finite, or it has none that can be compared.
    """

    def __init__(self, whole: nn.Module, batches: Sequence[Batch], classes: bool = False) -> None:
        self.batches = batches
        self.expected, self._scores = _outputs(whole, batches, classes)
        self._apart = divergence if self._scores else relative
        self.measure = "divergence" if self._scores else "distance"
        if not self.expected:
            raise DataError("the network returns no numbers to compare: give a network that returns tensors")
        if not all(bool(output.isfinite().all()) for output in self.expected):
            raise DataError("the network's outputs on these images are not finite: look at the images")

    def __call__(self, other: nn.Module) -> float:
        """Divergence, or mean relative squared difference over all outputs; infinite if they cannot be compared."""
        found, _ = _outputs(other, self.batches, self._scores)
        if [output.shape for output in found] != [output.shape for output in self.expected]:
            return math.inf
        apart = float(torch.stack([self._apart(*pair) for pair in zip(self.expected, found, strict=True)]).mean())
        return apart if math.isfinite(apart) else math.inf


@torch.no_grad()
def _outputs(model: nn.Module, batches: Sequence[Batch], classes: bool) -> tuple[list[Tensor], bool]:
    """Every output of all images, one row per image; and whether they are scores, if `classes` says they may be."""
    parts, scores = [], classes
    for batch in batches:
        output = call(model, batch.inputs)
        scores = scores and scores_classes(output, batch.size)
        parts.append(rows_of(output, batch.size, every=scores))
    if len({len(part) for part in parts}) != 1:
        return [], False
    same = (rows for rows in zip(*parts, strict=True) if len({row.shape[1] for row in rows}) == 1)
    return [torch.cat(rows) for rows in same], scores
