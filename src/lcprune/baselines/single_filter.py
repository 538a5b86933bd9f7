"""One filter at a time: Molchanov et al., Pruning CNNs for resource efficient inference, ICLR 2017.

With Fisher information: Theis et al., Faster gaze prediction with dense networks and Fisher pruning, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.baselines.training import (
    Checkpoint,
    TaskFeed,
    TrainingOptions,
    optimizer_of,
    take_step,
    training_mode,
)
from lcprune.baselines.units import put_back, zero_units
from lcprune.copies import copy_of, copy_to_run
from lcprune.errors import ConfigError, TuneError
from lcprune.method import Method, methods
from lcprune.progress import Progress
from lcprune.scoring import metrics
from lcprune.select import Kept
from lcprune.task import Choice, Task
from lcprune.tune.feed import mix

_DECAY = 1e-4  # of weights while tuning, as published


@methods.register("single_filter", needs_data=True)
@dataclass(frozen=True)
class SingleFilter(Method):
    """One unit at a time, ranked by first-order Taylor on activations, short tuning in between (Molchanov 2017).

    Scores of a group are divided by their Euclidean length, as published; `metric=` is of no effect.

    Published between two removals: 30 steps (VGG-16 on Birds-200; 10 for AlexNet on Flowers-102) of 32 images at a rate
    of 1e-4, momentum 0.9, weight decay 1e-4.

    Differs from the published set-up: a rate of 1e-3; scores come from images of their own instead of the batches of
    the tuning; coupled filters add up; no term for the MACs that a unit saves (published beside the plain form);
    momentum is Nesterov's and begins at zero after each removal. `step` > 1 removes more at a time and is faster by as
    much.

    Published: no ResNet-56 (VGG-16 and AlexNet, transfer). Run by the LcP paper on ResNet-56, CIFAR-10: 94.18 -> 93.21
    at 90.8 M MACs (72.4 %); MobileNetV2 on Birds-200: 80.22 -> 75.94 at 50 % MACs.

    Attributes:
        step: units removed between two rankings.
        tune_steps: steps of SGD after each removal.
        lr: their learning rate.
        batch_size: images per step.
        images: that units are ranked on, new ones each time.
    """

    step: int = 1
    tune_steps: int = 30
    lr: float = 1e-3
    batch_size: int = 32
    images: int = 256
    criterion: ClassVar[str] = "taylor_activation"
    normalised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.step < 1 or self.tune_steps < 0 or self.batch_size < 1 or self.images < 1 or not self.lr > 0:
            raise ConfigError(f"{self}: whole numbers from 1 on (tune_steps from 0), and a positive lr")

    def choose(self, task: Task) -> Choice:
        walk = _Walk(task)
        model = copy_to_run(task.graph.model)
        checkpoint = Checkpoint(task, "single-filter", model, {}, {**asdict(self), "criterion": self.criterion})
        rounds, removed = checkpoint.load()
        walk.removed = [(int(group), int(unit)) for group, unit in removed]
        batches = TaskFeed(task, self.batch_size).from_step(rounds * self.tune_steps)
        with Progress("single filter", enabled=task.progress) as bar:
            bar.advance(rounds)
            while not walk.done:
                walk.remove(self._scores(task, model, walk.kept(), rounds), self.step)
                plan = task.graph.plan(walk.kept())
                smaller = plan.apply(model)
                self._tune(task, smaller, batches, rounds)
                put_back(model, smaller, plan)
                rounds += 1
                checkpoint.save(rounds, walk.done, walk.removed)
                bar.advance(removed=len(walk.removed), cost=walk.cost())
        meta = {"criterion": self.criterion, "rounds": rounds, "step": self.step, "tune_steps": self.tune_steps}
        return Choice(walk.kept(), meta=meta, model=model)

    def _scores(self, task: Task, model: nn.Module, kept: Kept, rounds: int) -> list[NDArray[np.float64]]:
        """The criterion on the network as it is now: full size, removed units at zero."""
        samples = task.need_labels()
        chosen = np.random.default_rng((task.seed, rounds)).permutation(len(samples))[: self.images]
        few = replace(task, samples=[samples[index] for index in np.sort(chosen)])
        silent = copy_of(model)
        zero_units(task.graph, silent, kept)
        scores = metrics.score(replace(task.graph, model=silent), self.criterion, few.batches, task.loss_fn)
        return metrics.l2_normalised(scores) if self.normalised else scores

    def _tune(self, task: Task, model: nn.Module, batches: Iterator[Any], rounds: int) -> None:
        if not self.tune_steps:
            return
        optimizer = optimizer_of(model, TrainingOptions(lr=self.lr, weight_decay=_DECAY))
        with training_mode(model):
            for step, batch in enumerate(islice(batches, self.tune_steps)):
                torch.manual_seed(mix(task.seed, rounds, step, 2))  # dropout
                loss = float(take_step(model, batch, optimizer, task.loss_fn))
                if not math.isfinite(loss):
                    raise TuneError(f"single filter: the loss is {loss} in round {rounds + 1}; a lower lr may help")


@methods.register("single_filter_fisher", needs_data=True)
class SingleFilterFisher(SingleFilter):
    """One unit at a time, ranked by Fisher information, short tuning in between (Theis et al. 2018).

    Differs from the published set-up: no exchange rate between loss and cost (the limit says what is wanted), no
    distillation; otherwise as "single_filter", without its rescaling of layers, since Fisher information is already
    a change of the loss.

    Published: gaze prediction only (10 times faster at the same AUC on CAT2000); no classification network.
    """

    criterion, normalised = "fisher", False


class _Walk:
    """Units in the order of their removal; widths that `multiple_of` does not allow are rounded up."""

    def __init__(self, task: Task) -> None:
        self.task, self.sizes = task, task.graph.cost.sizes
        self.bounds = task.limits.bounds(task.graph.cost)
        blank = task.rank([np.zeros(size) for size in self.sizes])
        blank.select(task.limits)  # a limit that cannot be met is refused before anything is tuned
        self.floors = blank.floors
        self.removed: list[tuple[int, int]] = []  # groups and units

    @property
    def done(self) -> bool:
        """Whether the limits hold."""
        return all(bound.holds(self._widths()) for bound in self.bounds)

    def cost(self) -> str:
        """For the progress bar."""
        return self.bounds[0].describe(float(self.bounds[0].cost(self._widths())))

    def kept(self) -> Kept:
        """The units that stay: those alive, and the last removed up to an allowed width."""
        return self.task.rank(self._turns()).kept(self._widths())

    def remove(self, scores: list[NDArray[np.float64]], units: int) -> None:
        """Remove the lowest units above the floors, until the limits hold."""
        alive = [np.flatnonzero(turns == len(self.removed)) for turns in self._turns()]
        left = [len(own) for own in alive]
        groups, numbers = np.repeat(np.arange(len(alive)), left), np.concatenate(alive)
        order = np.lexsort((numbers, groups, np.concatenate([s[own] for s, own in zip(scores, alive, strict=True)])))
        for group, unit in zip(groups[order].tolist(), numbers[order].tolist(), strict=True):
            if left[group] > self.floors[group]:
                self.removed.append((group, unit))
                left[group] -= 1
                units -= 1
                if units == 0 or self.done:
                    return
        raise AssertionError("the limits hold at the floors")

    def _turns(self) -> list[NDArray[np.float64]]:
        """(units,) per group, when each had its turn; those alive have the last."""
        turns = [np.full(size, float(len(self.removed))) for size in self.sizes]
        for turn, (group, unit) in enumerate(self.removed):
            turns[group][unit] = turn
        return turns

    def _widths(self) -> NDArray[np.int64]:
        """Units of each group that have not had their turn, rounded up to an allowed width."""
        counts = self.sizes - np.bincount([group for group, _ in self.removed], minlength=len(self.sizes))
        rounded = np.minimum(-(-counts // self.task.multiple_of) * self.task.multiple_of, self.sizes)
        return np.asarray(np.maximum(rounded, self.floors), dtype=np.int64)
