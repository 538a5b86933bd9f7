"""One cut among the fleet: what `fit` would have of it between two steps, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lcprune.data import Dataset
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place
from lcprune.tune.distributed import World
from lcprune.tune.fleet.stack import Layout
from lcprune.tune.fleet.step import FleetFeed, FleetStepper
from lcprune.tune.recipe import Recipe
from lcprune.tune.training import Training

if TYPE_CHECKING:
    from lcprune.tune.step import Stepper


@dataclass
class MemberState:
    """A member's part of what the fleet's stepper keeps, under the names of a stepper of its own."""

    momentum: list[Tensor]
    losses: Tensor
    correct: Tensor


class FleetMember(Training):
    """A run whose steps are done by the fleet. Everything between steps is that of `fit`, files included.

    Args:
        layout: where its entries lie at full width.
        dataset, recipe, folder, world: as of `Training`; the recipe has this member's seed.
    """

    def __init__(
        self,
        number: int,
        model: nn.Module,
        layout: Layout,
        dataset: Dataset,
        recipe: Recipe,
        folder: Path | None,
        world: World,
    ) -> None:
        super().__init__(model, dataset, recipe, folder, None, world, 0)
        self.number, self.layout = number, layout.to(world.device)
        self.mode = model.training
        model.to(world.device).eval()
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.trained = [([names[id(p)] for p in params], rate) for params, rate in self._groups()]

    def join(self, feed: FleetFeed, resume: bool) -> None:
        """Make room for what is kept, and take up a checkpoint."""
        self.feed = feed
        own = dict(self.model.named_parameters())
        momentum = [torch.zeros_like(own[name]) for name in self.trained_names if self.recipe.momentum]
        losses = torch.zeros(feed.steps, device=self.world.device)
        self.stepper: Stepper = MemberState(  # type: ignore[assignment]
            momentum, losses, torch.zeros(1, dtype=torch.int64, device=self.world.device)
        )
        file = self._checkpoint_file()
        if resume and file is not None and file.exists():
            self.place = checkpoint.load(file, self.model, self._extra(), self._identity())

    @property
    def trained_names(self) -> list[str]:
        """Parameters in the order of the momentum."""
        return [name for names, _ in self.trained for name in names]

    @torch.no_grad()
    def pull(self, state: Mapping[str, Tensor], momentum: Mapping[str, Tensor]) -> None:
        """Take over this member's part of the fleet: thousands of small copies, so not after every epoch."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(self.layout.gather(name, state[name][self.number]))
        for name, tensor in zip(self.trained_names, self.stepper.momentum, strict=False):
            tensor.copy_(self.layout.gather(name, momentum[name][self.number]))

    def pull_epoch(self, stepper: FleetStepper) -> None:
        """Take over what is known of the epoch under way."""
        self.stepper.losses.copy_(stepper.losses[:, self.number])
        self.stepper.correct.copy_(stepper.correct[self.number])

    @torch.no_grad()
    def push_weights(self, state: Mapping[str, Tensor]) -> None:
        """Put this member's weights and statistics into the fleet's network; what the cut does not have is zero."""
        for name, tensor in self.model.state_dict().items():
            state[name][self.number].copy_(self.layout.scatter(name, tensor))

    @torch.no_grad()
    def push_momentum(self, momentum: Mapping[str, Tensor], stepper: FleetStepper) -> None:
        """Likewise its momentum, and what is known of the epoch under way."""
        for name, tensor in zip(self.trained_names, self.stepper.momentum, strict=False):
            momentum[name][self.number].copy_(self.layout.scatter(name, tensor))
        stepper.losses[:, self.number].copy_(self.stepper.losses)
        stepper.correct[self.number].copy_(self.stepper.correct[0])

    def move(self, place: Place) -> None:
        """Be where the fleet is."""
        self.place.epoch, self.place.step = place.epoch, place.step
        self.place.seconds = self.before + place.seconds

    def leave(self) -> None:
        """Give the network its mode back."""
        self.model.train(self.mode)
