"""What a candidate is judged by: which images, which loss, and what is done to it before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from lcprune.errors import need_choice, need_whole

PRECISIONS = ("fp32", "tf32", "bf16")
EVALUATORS = ("auto", "slice", "zero")
DISTANCE, DIVERGENCE = "distance", "divergence"
REPAIR, STATISTICS, CUT = AFTER = ("repair", "statistics", "cut")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How networks are judged while one is chosen; plain batches as `data=` of `prune` mean the defaults.

    Attributes:
        data: iterable of (input, target) batches, or of inputs alone.
        loss_fn: `loss_fn(output, target)`, a mean over the batch; "distance" looks at no targets and compares outputs
            with those of the whole network, "divergence" likewise the probabilities of classes that outputs mean. None
            is the divergence for classifiers that are judged after repair, cross-entropy for other networks that have
            targets, and the distance without any.
        images: that are drawn from the data once. After repair, half of them, at most 1,000, serve to repair
            candidates, and the others judge.
        batch_size: images per forward pass while judging; None chooses.
        precision: arithmetic of candidates: "fp32", "bf16", or "tf32" (on a GPU). Unless it is "fp32", a search judges
            its best `Search.finalists` again in fp32 before one is chosen. Candidates that the user prepares are always
            judged in fp32.
        evaluator: "slice" builds each smaller network, "zero" silences weights of one copy in place,
            "auto" zeroes on a GPU where that is exact and slices elsewhere.
        after: what is done to each candidate before it is judged: "repair" gives it stand-ins and new batch-norm
            statistics, as `lcprune.repair` would in closed form; "statistics" the latter alone; "cut" nothing: the
            paper's algorithm.
        prepare: `prepare(model, batches)` then changes each candidate in place: a user's own short tuning, say.
    """

    data: Iterable[Any] | None = None
    loss_fn: Callable[[Any, Any], torch.Tensor] | str | None = None
    images: int = 3000
    batch_size: int | None = None
    precision: str = "fp32"
    evaluator: str = "auto"
    after: str = REPAIR
    prepare: Callable[[Any, Any], None] | None = None

    def __repr__(self) -> str:
        plain = isinstance(self.data, (list, tuple, torch.Tensor))
        data = f"<{type(self.data).__name__} of {len(self.data)}>" if plain else repr(self.data)  # type: ignore[arg-type]
        own = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.name != "data")
        return f"Evaluation(data={data}, {', '.join(own)})"

    def __post_init__(self) -> None:
        need_whole("images", self.images, 1)
        if self.batch_size is not None:
            need_whole("batch_size", self.batch_size, 1)
        need_choice("after", self.after, AFTER)
        if isinstance(self.loss_fn, str):
            need_choice("loss_fn", self.loss_fn, (DISTANCE, DIVERGENCE))
        need_choice("precision", self.precision, PRECISIONS)
        need_choice("evaluator", self.evaluator, EVALUATORS)

    @classmethod
    def of(cls, data: Evaluation | Iterable[Any] | None) -> Evaluation:
        """What `data=` means: an evaluation as it is, or batches to be judged on in the usual way."""
        return data if isinstance(data, cls) else cls(data)  # type: ignore[arg-type]

    @property
    def loss(self) -> Callable[[Any, Any], torch.Tensor]:
        """The loss of labelled images."""
        return self.loss_fn if callable(self.loss_fn) else nn.functional.cross_entropy

    @property
    def prepares(self) -> bool:
        """Whether candidates are changed before they are judged: they may then have a lower loss than the network."""
        return self.after != CUT or self.prepare is not None
