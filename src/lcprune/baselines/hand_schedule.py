"""A hand-made layer schedule with l1 ranking: Li et al., Pruning filters for efficient ConvNets, ICLR 2017."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcprune.baselines.layers import describe_layers
from lcprune.errors import BudgetError, ConfigError
from lcprune.method import Method, methods
from lcprune.scoring import metrics
from lcprune.select import Kept
from lcprune.task import Choice, Task

_BISECTIONS = 40


@methods.register("l1_schedule")
@dataclass(frozen=True)
class L1Schedule(Method):
    """A rate per stage, made by hand, and the filters with the least sum of absolute weights (Li et al. 2017).

    In the published way only layers inside residual blocks are cut, never the sums behind them; `metric=` is of no
    effect. `lcprune.Schedule` with metric="l1" takes any other schedule.

    Differs from the published set-up: the published rates (60, 30 and 10 % in the three stages of ResNet-56) are
    scaled by one factor until the limit holds; the six layers that the authors skip by hand (16, 18, 20, 34, 38, 54)
    are not skipped. If the layers inside blocks cannot meet the limit, the coupled ones are cut as well.

    Published: ResNet-56 on CIFAR-10, 93.04 -> 93.06 at 90.9 M MACs (72.4 %).

    Attributes:
        rates: share of filters to remove in each stage (layers whose feature maps have the same size), before all are
            scaled to the limit; the published ones of ResNet-56-pruned-B. Networks with more or fewer stages get
            values in between.
    """

    rates: tuple[float, ...] = (0.6, 0.3, 0.1)

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate <= 1 for rate in self.rates) or not any(self.rates):
            raise ConfigError(f"rates={self.rates} are shares to remove per stage, from 0 to 1, not all 0")

    def choose(self, task: Task) -> Choice:
        layers = describe_layers(task.graph)
        ranking = task.rank(metrics.score(task.graph, "l1"))
        bounds = task.limits.bounds(task.graph.cost)
        sizes = sorted({layer.height * layer.width for layer in layers}, reverse=True)
        stages = [sizes.index(layer.height * layer.width) for layer in layers]
        places = np.linspace(0, max(len(sizes) - 1, 1), len(self.rates)) if len(self.rates) > 1 else [0]
        rates = np.interp(stages, places, self.rates)
        inner = np.array([layer.coupled <= 1 for layer in layers])

        def scaled(factor: float, cut: NDArray[np.bool_]) -> Kept:
            keep = np.where(cut, 1 - np.minimum(1, factor * rates), 1.0)
            return ranking.schedule(dict(zip(task.graph.cost.names, keep.tolist(), strict=True)))

        def fits(kept: Kept) -> bool:
            counts = np.array([len(units) for units in kept])
            return all(bound.holds(counts) for bound in bounds)

        for cut in (inner, np.ones_like(inner)):
            low, high = 0.0, 1 / max(rates[rates > 0].min(), 1e-3)
            if not fits(scaled(high, cut)):
                continue
            for _ in range(_BISECTIONS):  # the limits hold at `high`
                middle = (low + high) / 2
                low, high = (low, middle) if fits(scaled(middle, cut)) else (middle, high)
            kept = scaled(high, cut)
            shares = {g.name: len(units) / g.size for g, units in zip(task.graph.groups, kept, strict=True)}
            return Choice(kept, meta={"factor": high, "schedule": shares})
        ranking.select(task.limits)  # says what can be had, if the limit cannot be met at all
        raise BudgetError(f"rates={self.rates} leave stages whole, so this limit cannot be met; give each stage a rate")
