"""Judging without labels: how far a network's answers are from those that the whole one gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import arithmetic, call, collate
from lcprune.copies import copy_to_run
from lcprune.errors import DataError
from lcprune.repairs.distance import rows_of, spread_of

_BATCH = 128


@dataclass(frozen=True, eq=False)
class FromWhole:
    """A loss whose targets are the answers of the whole network: squared differences, relative to `scales`.

    Attributes:
        scales: how much every output tensor of the whole network differs from image to image, on average.
    """

    scales: tuple[float, ...]

    def __call__(self, output: Any, target: Sequence[Tensor]) -> Tensor:
        rows = rows_of(output, len(target[0]))
        if [row.shape for row in rows] != [row.shape for row in target]:
            return torch.tensor(torch.inf, device=target[0].device)
        apart = [
            (row - answer.to(row.device)).square().sum(1).mean() / scale
            for row, answer, scale in zip(rows, target, self.scales, strict=True)
        ]
        return torch.stack(apart).mean()


def answered(model: nn.Module, samples: Sequence[tuple[Any, Any]]) -> tuple[list[tuple[Any, Any]], FromWhole]:
    """Images with the network's own answers as targets, and the loss that compares others with them.

    Args:
        model: the whole network; it is not changed.
        samples: (input, target) pairs; targets are not looked at.

    Raises:
        DataError: it gives nothing that can be compared, or nothing finite.
    """
    whole = copy_to_run(model)
    batches = collate([(inputs, ()) for inputs, _ in samples], _BATCH, next(whole.parameters()).device)
    with arithmetic(), torch.no_grad():
        outputs = (rows_of(call(whole, batch.inputs), batch.size) for batch in batches)
        found = [[row.cpu() for row in rows] for rows in outputs]
    shapes = {tuple(row.shape[1] for row in rows) for rows in found}
    if len(shapes) != 1 or not found[0]:
        raise DataError(
            "without targets, networks are judged by what they return for each image: this one returns no "
            "numbers of a fixed size. Give (input, target) batches and a loss"
        )
    answers = [torch.cat(rows) for rows in zip(*found, strict=True)]
    if not all(bool(answer.isfinite().all()) for answer in answers):
        raise DataError("the network's outputs on these images are not finite: look at the images")
    scales = tuple(float(spread_of(answer)) / len(answer) for answer in answers)
    pairs = [(inputs, tuple(answer[place] for answer in answers)) for place, (inputs, _) in enumerate(samples)]
    return pairs, FromWhole(scales)
