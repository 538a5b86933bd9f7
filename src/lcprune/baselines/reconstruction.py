"""Channels that reconstruct the next layer's output best, then least squares for the weights that read them.

Two selectors: lasso (He et al., Channel pruning for accelerating very deep neural networks, ICCV 2017) and the greedy
one of ThiNet (Luo et al., A filter level pruning method for deep neural network compression, ICCV 2017).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lcprune.baselines.readers import readers_of, watch
from lcprune.copies import copy_to_run
from lcprune.errors import ConfigError
from lcprune.method import Method, methods
from lcprune.progress import Progress
from lcprune.search.space import FloatArray
from lcprune.task import Choice, Task

_SWEEPS, _HALVINGS = 50, 30
_SETTLED = 1e-4  # of coefficients that are 1 where nothing is penalised
_NEAR = 1.02  # this many times the wanted units is near enough: the smallest coefficients go


@dataclass(frozen=True)
class Reconstruction(Method):
    """What "channel_lasso" and "thinet" share.

    Attributes:
        images: that outputs are reconstructed on.
        points: places of each feature map that are looked at.
        schedule: group name or pattern -> share to keep; None keeps the same share of every group.
    """

    images: int = 500
    points: int = 10
    schedule: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.images < 1 or self.points < 1:
            raise ConfigError(f"images={self.images} and points={self.points} must be at least 1")

    @staticmethod
    @abstractmethod
    def select(gram: FloatArray, product: FloatArray, count: int) -> NDArray[np.int64]:
        """The units of a group that stay; arguments are those of `lasso`."""

    @property
    def scheduled(self) -> bool:
        return bool(self.schedule)

    def choose(self, task: Task) -> Choice:
        graph = task.graph
        if self.schedule:
            kept = task.ranking.schedule(self.schedule, task.limits if task.limits else None)
        else:
            kept = task.ranking.uniform(task.limits)
        samples = task.need_images()
        chosen = np.random.default_rng(task.seed).permutation(len(samples))[: self.images]
        batches = replace(task, samples=[samples[index] for index in np.sort(chosen)]).batches
        model = copy_to_run(graph.model)
        reconstructed = 0
        with Progress("reconstruct", total=len(graph.groups), enabled=task.progress) as bar:
            for position, group in enumerate(graph.groups):
                bar.advance(layer=group.name)
                readers = readers_of(model, group)
                if len(kept[position]) == group.size or not readers:
                    continue
                seen = watch(readers, graph.model, model, batches, self.points, task.seed)
                # Z'Z and Z'y of all readers: column u of Z is what unit u adds to their outputs, y what all should add.
                gram, product = np.zeros((group.size, group.size)), np.zeros(group.size)
                for reader in readers:
                    parts, wanted = reader.contributions(seen[reader.name])
                    gram += parts.T @ parts
                    product += parts.T @ wanted
                kept[position] = np.sort(self.select(gram, product, len(kept[position])))
                reconstructed += 1
                for reader in readers:
                    reader.refit(seen[reader.name], kept[position])
        return Choice(kept, meta={"images": len(chosen), "reconstructed": reconstructed}, model=model)


def lasso(gram: FloatArray, product: FloatArray, count: int) -> NDArray[np.int64]:
    """The units that keep a coefficient as the l1 term grows until no more than `count` do.

    Args:
        gram: Z'Z (units, units).
        product: Z'y (units,).
    """
    low, high = 0.0, float(np.abs(product).max()) or 1.0  # at `high` every coefficient is zero
    beta = _descend(gram, product, 0.0, np.ones(len(product)))
    best = beta
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beta = _descend(gram, product, middle, beta)
        alive = int((beta != 0).sum())
        if alive >= count:
            low, best = middle, beta.copy()
            if alive <= _NEAR * count:
                break
        else:
            high = middle
    # What is left over goes by its coefficient, weighted by what it adds.
    order = np.argsort(-np.abs(best) * np.sqrt(np.maximum(np.diag(gram), 0)), kind="stable")
    return order[:count]


def _descend(gram: FloatArray, product: FloatArray, penalty: float, start: FloatArray) -> FloatArray:
    """Coordinate descent on b'Gb/2 - b'p + penalty * |b|_1, over the units that are on or would come on."""
    diagonal = np.diag(gram)
    beta = np.where(diagonal > 0, start, 0.0)
    slope = gram @ beta - product
    for _ in range(_SWEEPS):
        largest = 0.0
        for unit in np.flatnonzero((diagonal > 0) & ((beta != 0) | (np.abs(slope) > penalty))).tolist():
            free = diagonal[unit] * beta[unit] - slope[unit]
            new = np.sign(free) * max(abs(free) - penalty, 0.0) / diagonal[unit]
            change = new - beta[unit]
            if change:
                slope += change * gram[unit]
                beta[unit] = new
                largest = max(largest, abs(change))
        if largest < _SETTLED:
            break
    return beta


def greedy(gram: FloatArray, product: FloatArray, count: int) -> NDArray[np.int64]:
    """The units left when, one after another, the one goes whose absence adds least to the squared error.

    Arguments are those of `lasso`; `product` is not used: ThiNet asks for the smallest sum of what is removed.
    """
    gone = np.zeros(len(gram), dtype=bool)
    cross = np.zeros(len(gram))  # of each unit with the sum of those that are gone
    for _ in range(len(gram) - count):
        error = np.diag(gram) + 2 * cross
        unit = int(np.argmin(np.where(gone, np.inf, error)))
        gone[unit] = True
        cross += gram[:, unit]
    return np.flatnonzero(~gone)


@methods.register("channel_lasso", needs_data=True)
class ChannelLasso(Reconstruction):
    """Channels by lasso on the next layer's output, then least squares for its weights (He et al. 2017).

    Differs from the published set-up: every group keeps the same share, or what `schedule` says (published: a
    schedule by hand, shallow layers pruned more); 500 images with 10 points each by default (published 5,000: not
    verified); a residual group is chosen for all of its readers together (published: readers choose for themselves, by
    a sampler in front of each block); groups that no plain convolution or linear layer reads are chosen by `metric=`.

    Published: ResNet-56 on CIFAR-10, 92.8 -> 91.8 at 62.7 M MACs (50 %), as the LcP paper quotes it.
    """

    select = staticmethod(lasso)


@methods.register("thinet", needs_data=True)
class ThiNet(Reconstruction):
    """Channels whose absence changes the next layer's output least, greedily, then least squares (Luo et al. 2017).

    Differs from the published set-up: full weights by least squares where the authors scale channels; no epoch of
    tuning after each layer; residual groups are cut too; otherwise as "channel_lasso".

    Published: no ResNet-56 (ResNet-50 on ImageNet, 72.88 -> 72.04 at 63 % of the MACs, as the LcP paper quotes it).
    """

    select = staticmethod(greedy)
