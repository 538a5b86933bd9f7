"""Loss and score of a network on a split, and new batch-norm statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from lcprune import bf16
from lcprune.batches import as_batch, call, loss_of
from lcprune.data import AnyData
from lcprune.errors import TuneError
from lcprune.repairs.statistics import renew_statistics, statistics_of
from lcprune.score import LOSS
from lcprune.tune.step import autocast, in_float32


class SplitResult(NamedTuple):
    """The mean loss, and the score: unless the data say otherwise, the share of images that are right (0 to 1)."""

    loss: float
    score: float

    @property
    def accuracy(self) -> float:
        """The score, where that is accuracy."""
        return self.score


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The given device, or the GPU where there is one."""
    chosen = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    # Without a number: the current one.
    return torch.device("cuda", torch.cuda.current_device()) if str(chosen) == "cuda" else chosen


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: AnyData,
    split: str = "test",
    *,
    batch_size: int = 500,
    limit: int | None = None,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    workers: int = 0,
) -> SplitResult:
    """Loss and score on a split.

    Args:
        model: the network; moved to the device, otherwise left as it was.
        dataset: where the images are; says the loss and the score.
        split: "train", "val" or "test".
        batch_size: images at a time.
        limit: use at most so many images.
        device: None for the GPU where there is one.
        precision: "fp32", "bf16", or "auto": bf16 where it works.
        workers: processes that decode image files.
    """
    where = pick_device(device)
    bf16.refuse_network(model, where, TuneError)
    precision = bf16.precision_on(precision, where, TuneError)
    training = model.training
    model.to(where).eval()
    losses, seen = [], 0
    score = dataset.compared_by
    meter = None if score is LOSS else score.meter()
    try:
        for images, labels in dataset.batches(split, batch_size, limit=limit, device=where, workers=workers):
            with autocast(where, precision):
                output = call(model, images)
            output = in_float32(output)
            size = as_batch((images, labels)).size
            if dataset.loss_fn is None:
                losses.append(functional.cross_entropy(output, labels, reduction="sum") * (size / labels.numel()))
            else:
                losses.append(loss_of(dataset.loss_fn, output, labels) * size)
            if meter is not None:
                meter.update(output, labels)
            seen += size
    finally:
        model.train(training)
    loss = float(torch.stack(losses).double().sum()) / seen
    return SplitResult(loss, loss if meter is None else float(meter.compute()))


def recalibrate(
    model: nn.Module,
    dataset: AnyData,
    images: int = 2000,
    *,
    batch_size: int = 250,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> None:
    """Measure new batch-norm statistics, as plain averages over training images.

    Pruning shifts what reaches every normalisation; statistics of the smaller network are part of its repair.

    Args:
        model: changed in place.
        dataset: its training images are drawn, without augmentation.
        images: how many.
        batch_size: images at a time; a last batch of no more than half as many is left out.
        seed: of the draw.
        device: None for the GPU where there is one.
    """
    if not statistics_of(model):
        return
    if images < 2:
        raise TuneError(f"images={images}: statistics need at least two")
    where = pick_device(device)
    bf16.refuse_network(model, where, TuneError)
    training = model.training
    drawn = dataset.batches("train", batch_size, limit=images, seed=seed, device=where)
    try:
        renew_statistics(model.to(where), (as_batch((inputs, ())) for inputs, _ in drawn))
    finally:
        model.train(training)
