"""Judging without labels: how far a network's answers are from those that the whole one gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import alone, arithmetic, call, collate
from lcprune.copies import copy_to_run
from lcprune.errors import ConfigError, DataError
from lcprune.repairs.distance import divergence, rows_of, scores_classes, spread_of

_BATCH = 128


@dataclass(frozen=True, eq=False)
class FromWhole:
    """A loss whose targets are the answers of the whole network: squared differences, or the divergence.

    Attributes:
        scales: how much every output tensor of the whole network differs from image to image, on average; None for
            scores of classes, whose probabilities are compared.
    """

    scales: tuple[float, ...] | None

    def __call__(self, output: Any, target: Sequence[Tensor]) -> Tensor:
        rows = rows_of(output, len(target[0]), every=self.scales is None)
        if [row.shape for row in rows] != [row.shape for row in target]:
            return torch.tensor(torch.inf, device=target[0].device)
        if self.scales is None:
            return divergence(target[0].to(rows[0].device), rows[0])
        apart = [
            (row - answer.to(row.device)).square().sum(1).mean() / scale
            for row, answer, scale in zip(rows, target, self.scales, strict=True)
        ]
        return torch.stack(apart).mean()


def answered(
    model: nn.Module, samples: Sequence[tuple[Any, Any]], classes: bool = False
) -> tuple[list[tuple[Any, Any]], FromWhole]:
    """Images with the whole network's own answers as targets, and the loss that compares others with them.

    Args:
        model: the network; it is not changed.
        samples: (input, target) pairs; targets are not looked at.
        classes: its outputs are scores of classes.

    Raises:
        ConfigError: they are not.
        DataError: it gives nothing that can be compared, or nothing finite.
    """
    whole = copy_to_run(model)
    found = []
    with arithmetic(), torch.no_grad():
        for batch in collate(alone(samples), _BATCH, next(whole.parameters()).device):
            output = call(whole, batch.inputs)
            if classes and not scores_classes(output, batch.size):
                raise ConfigError("loss_fn='divergence' is for networks that return one row of scores: take 'distance'")
            found.append([row.cpu() for row in rows_of(output, batch.size, every=classes)])
    shapes = {tuple(row.shape[1] for row in rows) for rows in found}
    answers = [torch.cat(rows) for rows in zip(*found, strict=True)] if len(shapes) == 1 else []
    if not answers or any(len(answer) != len(samples) for answer in answers):
        raise DataError(
            "without targets, networks are judged by what they return for each image: this one returns no "
            "numbers of a fixed size. Give (input, target) batches and a loss"
        )
    if not all(bool(answer.isfinite().all()) for answer in answers):
        raise DataError("the network's outputs on these images are not finite: look at the images")
    pairs = [(inputs, tuple(answer[place] for answer in answers)) for place, (inputs, _) in enumerate(samples)]
    scales = None if classes else tuple(float(spread_of(answer)) / len(answer) for answer in answers)
    return pairs, FromWhole(scales)
