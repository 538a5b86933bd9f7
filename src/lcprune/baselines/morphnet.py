"""MorphNet: Gordon et al., Fast & simple resource-constrained structure learning of deep networks, CVPR 2018."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lcprune.baselines.scales import Scales, scales_of, select_scales
from lcprune.baselines.training import TaskFeed, TrainingOptions, train
from lcprune.errors import ConfigError
from lcprune.method import Method, methods
from lcprune.task import Choice, Task

logger = logging.getLogger("lcprune")

_WIDER = 4.0  # factor of lambda while only one side of the limit has been seen


@methods.register("morphnet", needs_data=True)
@dataclass(frozen=True)
class MorphNet(TrainingOptions, Method):
    """Shrink batch-norm scales by what they cost; lambda by bisection until the limit is met (Gordon et al. 2018).

    The penalty is lambda * sum over groups of (what one more unit costs, beside the units that are on) * (sum over
    units of their largest scale): the published regulariser, whose terms (on in) x |scale out| + |scale in| x (on out)
    are the derivative of MACs by counts. It serves any limit: MACs, parameters, latency. The plan's meta says how many
    trainings the search for lambda took: that is the method's price.

    Differs from the published set-up: begins with the trained network; which units are on is counted again after each
    epoch, not at each step; the last bit between the network found and the limit is taken or given by the order of the
    scales (published: whatever width comes out, and a uniform expansion afterwards); weights are kept and tuned
    (published: trained from scratch); groups without a normalisation stay whole.

    Published: no ResNet-56 (Inception V2 on ImageNet, +1.1 points at the same MACs: not verified). Run by the LcP paper
    on ResNet-56, CIFAR-10: 94.18 -> 93.51 at 77.8 M MACs (62 %).

    Attributes:
        epochs: of one training.
        trainings: most values of lambda tried.
        threshold: a unit is off when all of its scales are at most this.
        tolerance: a network that meets the limit and costs at least `1 - tolerance` of it ends the search.
        strength: the first lambda; None begins with the one that brings a scale of 1, which the loss does not hold,
            to 0 within the training.
    """

    epochs: int = 10
    trainings: int = 8
    threshold: float = 0.01
    tolerance: float = 0.05
    strength: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainings < 1 or not 0 < self.tolerance < 1 or not self.threshold > 0:
            raise ConfigError(f"{self}: trainings from 1 on, tolerance between 0 and 1, threshold above 0")

    def choose(self, task: Task) -> Choice:
        untrained = scales_of(task.graph, task.graph.model, "morphnet")
        # A limit that cannot be met is refused before any training.
        select_scales(task, untrained)
        bound = min(task.limits.bounds(task.graph.cost), key=lambda bound: bound.value / bound.full)
        steps = self.epochs * TaskFeed(task, self.batch_size).steps
        sizes = task.graph.cost.sizes
        share = float(np.mean(_marginal(bound, sizes)))  # what one unit costs, as a share of the network
        strength = self.strength or 1 / (share * self.travel(steps))
        weak: float | None = None  # the strongest lambda whose network is too big
        strong: float | None = None  # the weakest lambda whose network meets the limit
        tried: list[dict[str, Any]] = []
        best: tuple[float, nn.Module, Scales] | None = None
        for number in range(1, self.trainings + 1):
            model, scales = _shrink(task, self, bound, strength, f"morphnet-{number:02d}")
            cost = float(bound.cost(_on(scales, sizes, self.threshold)))
            logger.info("morphnet: lambda %.3g gives %s", strength / bound.full, bound.describe(cost))
            tried.append({"strength": strength, "lambda": strength / bound.full, "cost": cost})
            distance = abs(math.log(max(cost, 1e-9 * bound.full) / bound.value))
            if best is None or distance < best[0]:
                best = distance, model, scales
            if (1 - self.tolerance) * bound.value <= cost <= bound.value:
                break
            if cost > bound.value:
                weak = strength
            else:
                strong = strength
            strength = _next(weak, strong)
        assert best is not None
        _, model, scales = best
        kept = select_scales(task, scales)
        return Choice(kept, meta={"trainings": len(tried), "tried": tried, "epochs": self.epochs}, model=model)


def _shrink(task: Task, method: MorphNet, bound: Any, strength: float, name: str) -> tuple[nn.Module, Scales]:
    """One training from the network's own weights."""
    model = copy.deepcopy(task.graph.model)
    scales = scales_of(task.graph, model, "morphnet")
    sizes = task.graph.cost.sizes
    weights = torch.zeros(len(sizes), device=scales.all[0].device)

    def weigh() -> None:
        weights.copy_(torch.from_numpy(_marginal(bound, _on(scales, sizes, method.threshold))))

    def penalty() -> Tensor:
        sums = [scales.largest(g).sum() if parts else weights.new_zeros(()) for g, parts in enumerate(scales.groups)]
        return strength * (weights * torch.stack(sums)).sum()

    weigh()
    # Lambda is part of what a checkpoint belongs to.
    train(task, model, replace(method, strength=strength), name, penalty, weigh)
    return model, scales


def _marginal(bound: Any, on: NDArray[np.int64]) -> NDArray[np.float64]:
    """(groups,) what the last unit of each group costs, as a share of the whole network."""
    here = float(bound.cost(on))
    one_less = [np.where(np.arange(len(on)) == group, np.maximum(on - 1, 0), on) for group in range(len(on))]
    return np.array([here - float(bound.cost(counts)) for counts in one_less]) / bound.full


def _on(scales: Scales, sizes: NDArray[np.int64], threshold: float) -> NDArray[np.int64]:
    """(groups,) units that are on; at least one, since a network without a layer is none."""
    counts = [
        int((array > threshold).sum()) if array.size else size
        for array, size in zip(scales.numbers(), sizes.tolist(), strict=True)
    ]
    return np.maximum(np.array(counts, dtype=np.int64), 1)


def _next(weak: float | None, strong: float | None) -> float:
    if weak is not None and strong is not None:
        return math.sqrt(weak * strong)
    return weak * _WIDER if weak is not None else (strong or 1.0) / _WIDER
