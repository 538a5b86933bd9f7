"""What a candidate is judged by: which images, which loss, and what is done to it before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lcprune.errors import SearchError, need_choice, need_whole

PRECISIONS = ("fp32", "tf32", "bf16")
EVALUATORS = ("auto", "slice", "zero")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How networks are judged while one is chosen; plain batches as `data=` of `prune` mean the defaults.

    Attributes:
        data: iterable of (input, target) batches.
        loss_fn: `loss_fn(output, target)`, a mean over the batch.
        images: that are drawn from the data once.
        batch_size: images per forward pass while judging; None chooses.
        precision: arithmetic of candidates: "fp32", "bf16", or "tf32" (on a GPU). Unless it is "fp32", a search judges
            its best `Search.finalists` again in fp32 before one is chosen. Candidates that are changed before they are
            judged (`recalibrate`, `tune_steps`, `prepare`) are always judged in fp32.
        evaluator: "slice" builds each smaller network, "zero" silences weights of one copy in place,
            "auto" zeroes on a GPU where that is exact and slices elsewhere.
        recalibrate: re-estimate batch-norm statistics of each candidate before it is judged; "auto" does so at limits
            where naive pruning leaves a network that is no better than guessing, since the loss right after such cuts
            says nothing about the tuned network; it leaves candidates as they are where the network has no such
            statistics or does not answer with one tensor, or with `tune_steps` or `prepare`. False is the paper's
            algorithm.
        tune_steps: SGD steps on the drawn images given to each candidate before it is judged.
        tune_lr: learning rate of these steps.
        prepare: `prepare(model, batches)` changes each candidate in place before it is judged: a user's own
            short tuning. Judged by signed loss difference, since a prepared candidate may beat the network.
    """

    data: Iterable[Any] | None = None
    loss_fn: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy
    images: int = 3000
    batch_size: int | None = None
    precision: str = "fp32"
    evaluator: str = "auto"
    recalibrate: bool | str = "auto"
    tune_steps: int = 0
    tune_lr: float = 0.01
    prepare: Callable[[Any, Any], None] | None = None

    def __post_init__(self) -> None:
        need_whole("images", self.images, 1)
        need_whole("tune_steps", self.tune_steps, 0)
        if self.batch_size is not None:
            need_whole("batch_size", self.batch_size, 1)
        if self.tune_steps and not self.tune_lr > 0:
            raise SearchError(f"tune_lr={self.tune_lr!r} must be positive")
        if not isinstance(self.recalibrate, bool) and self.recalibrate != "auto":
            raise SearchError(f'recalibrate={self.recalibrate!r} is not known; choose True, False or "auto"')
        need_choice("precision", self.precision, PRECISIONS)
        need_choice("evaluator", self.evaluator, EVALUATORS)

    @classmethod
    def of(cls, data: Evaluation | Iterable[Any] | None) -> Evaluation:
        """What `data=` means: an evaluation as it is, or batches to be judged on in the usual way."""
        return data if isinstance(data, cls) else cls(data)  # type: ignore[arg-type]

    @property
    def prepares(self) -> bool:
        """Whether candidates are changed before they are judged; what "auto" decides at a limit does not count."""
        return self.recalibrate is True or self.tune_steps > 0 or self.prepare is not None
