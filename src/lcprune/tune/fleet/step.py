"""Batches and steps of a fleet: those of each member, one after another in the batch dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lcprune.data import ArraySplit, Dataset
from lcprune.errors import TuneError
from lcprune.tune.feed import ResidentFeed
from lcprune.tune.loss import member_losses
from lcprune.tune.recipe import Recipe
from lcprune.tune.step import Stepper, Trained


class FleetFeed(ResidentFeed):
    """One copy of the images on the device, and for each member the order and crops that its seed gives.

    Attributes:
        batch: images per step and member; `fetch` gives them for all members, member 0's first.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, augment: bool, seeds: Sequence[int], device: torch.device
    ) -> None:
        if not isinstance(dataset.train, ArraySplit):
            raise TuneError(
                f"{dataset.name} comes from image files, and a fleet is fed from arrays, such as CIFAR's: tune each "
                "network with `fit`"
            )
        if not len(dataset.train):
            raise TuneError(f"{dataset.name} has no training images")
        super().__init__(dataset, batch_size, augment, seeds[0], device, (0, 1))
        self.seeds = list(seeds)
        wide = (self.steps, len(seeds) * self.batch)
        self.order = torch.zeros(wide, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(3, *wide, dtype=torch.int64, device=device)

    def start(self, epoch: int, step: int) -> None:
        orders, draws = zip(*(self.tables(seed, epoch) for seed in self.seeds), strict=True)
        self.order.copy_(torch.cat(orders, dim=-1))
        self.drawn.copy_(torch.cat(draws, dim=-1))
        self.cursor.fill_(step)


class FleetStepper(Stepper):
    """A step of every member at once. What is minimised is the sum of their losses, so each gets its own gradient.

    Args:
        network, feed, teacher, capture: as of `Stepper`.
        recipes: one per member. Where they differ, each member's share of a parameter is updated by itself.
        groups: parameters, and the learning rate of each member.

    Attributes:
        losses: float32 (steps, members).
        correct: int64 (members,).
    """

    def __init__(
        self,
        network: nn.Module,
        feed: FleetFeed,
        recipes: Sequence[Recipe],
        groups: list[tuple[list[nn.Parameter], list[float]]],
        teacher: nn.Module | None,
        capture: bool,
    ) -> None:
        self.members, self.recipes = len(feed.seeds), list(recipes)
        self.alike = len({replace(recipe, seed=0, name="") for recipe in recipes}) == 1
        self.shares: list[tuple[nn.Parameter, list[Tensor]]] = []
        self.group_rates = [rates for _, rates in groups]
        super().__init__(network, feed, recipes[0], [(params, rates[0]) for params, rates in groups], teacher)
        self.smoothing = torch.tensor([recipe.label_smoothing for recipe in recipes], device=self.device)
        self.losses = torch.zeros(feed.steps, self.members, device=self.device)
        self.correct = torch.zeros(self.members, dtype=torch.int64, device=self.device)
        if capture:
            self._capture()

    def _parts(self, groups: list[tuple[list[nn.Parameter], float]]) -> list[Trained]:
        whole = super()._parts(groups)
        if self.alike:
            return whole
        parts = []
        for (params, _), part, rates in zip(groups, whole, self.group_rates, strict=True):
            shares = [[*parameter.detach()] for parameter in params]
            self.shares += zip(params, shares, strict=True)
            for number, (recipe, rate) in enumerate(zip(self.recipes, rates, strict=True)):
                momentum = [buffer[number] for buffer in part.momentum]
                parts.append(Trained([own[number] for own in shares], momentum, rate, recipe))
        return parts

    def _update(self) -> None:
        for parameter, shares in self.shares:
            assert parameter.grad is not None
            for share, gradient in zip(shares, parameter.grad, strict=True):
                share.grad = gradient
        super()._update()

    def _loss(self, logits: Tensor, labels: Tensor, taught: Tensor | None) -> Tensor:
        return member_losses(logits, labels, self.smoothing, self.recipe, taught)
