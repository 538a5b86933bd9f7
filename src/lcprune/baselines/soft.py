"""Soft filter pruning: He et al., Soft filter pruning for accelerating deep CNNs, IJCAI 2018."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lcprune.baselines.training import TrainingOptions, train
from lcprune.baselines.units import zero_units
from lcprune.batches import collate
from lcprune.copies import copy_of
from lcprune.errors import ConfigError
from lcprune.method import Method, methods
from lcprune.repairs.statistics import renew_statistics
from lcprune.scoring import metrics
from lcprune.select import Kept
from lcprune.task import Choice, Task


@methods.register("soft", needs_data=True)
@dataclass(frozen=True)
class Soft(TrainingOptions, Method):
    """Zero the shortest filters after each epoch, let them grow again in the next, cut at the end (He et al. 2018).

    The same share of every group goes, by the Euclidean length of its filters, as published.

    Differs from the published set-up: begins with the trained network at a low rate for a few epochs (published: 200
    epochs); residual groups are cut too, with the sum of their filters' lengths; the share follows from the limit.
    While training, only filters are zeroed and not the shift of the norm behind them, as in the authors' code (without
    it a zeroed filter would never get a gradient again). At the end the shifts go too, and the statistics of all norms
    are measured again, so that the cut network is the one that is judged. Gradients are clipped (see `clip`).

    Published: ResNet-56 on CIFAR-10, 93.59 +- 0.58 -> 93.35 +- 0.31 at 59.4 M MACs (47.4 %), as the LcP paper quotes
    it.

    Attributes:
        clip: longest gradient; None for any. The norm behind a zeroed filter divides by almost nothing, so without this
            the filter may come back longer than all others.
    """

    clip: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip={self.clip} must be positive")

    def choose(self, task: Task) -> Choice:
        model = copy_of(task.graph.model)
        graph = replace(task.graph, model=model)

        def shortest_go(*roles: str) -> Kept:
            kept = task.rank(metrics.score(graph, "l2_norm")).uniform(task.limits)
            zero_units(graph, model, kept, roles)
            return kept

        shortest_go()  # a limit that cannot be met is refused before the training
        train(task, model, self, self.name, after_epoch=lambda: shortest_go("out"), clip=self.clip)
        kept = shortest_go("out", "along")
        renew_statistics(model, collate(task.need_labels(), 128, next(model.parameters()).device))
        return Choice(kept, meta={"epochs": self.epochs}, model=model)
