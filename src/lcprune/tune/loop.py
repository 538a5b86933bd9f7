"""The training loop: epochs of steps, with looks, checkpoints and ways out between them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lcprune.progress import Progress
from lcprune.tune.checkpoint import Place
from lcprune.tune.distributed import World
from lcprune.tune.feed import Feed, mix
from lcprune.tune.interrupt import InterruptFlag
from lcprune.tune.recipe import Recipe
from lcprune.tune.step import Stepper

# Steps between looks at the device. A look waits for it, so on a GPU they are rare.
_STEPS_PER_LOOK = {"cuda": 50, "cpu": 1}


class Loop(ABC):
    """What trains, seen from the loop.

    Attributes:
        recipe: how.
        world: this process among its siblings.
        place: where the run is; the loop moves it on.
        feed: gives the batches.
        stepper: does the steps.
    """

    recipe: Recipe
    world: World
    place: Place
    feed: Feed
    stepper: Stepper

    def train(self, progress: bool, checkpoint_seconds: float, max_seconds: float | None) -> None:
        """Run epochs until done, interrupted or out of time."""
        recipe, place, steps = self.recipe, self.place, self.feed.steps
        self.open()
        total = recipe.epochs * steps
        self.saved_at = self.started = time.monotonic()
        self.before = place.seconds
        with (
            InterruptFlag() as interrupt,
            Progress(recipe.name, total=total, enabled=progress and self.world.first) as bar,
        ):
            bar.advance(place.epoch * steps + place.step)
            while place.epoch < recipe.epochs:
                self._epoch(bar, interrupt, checkpoint_seconds, max_seconds)
                if place.step == steps:
                    self.end_epoch(checkpoint_seconds)
                if place.epoch < recipe.epochs and (place.step or self._out_of_time(max_seconds)):
                    self.save()
                    return
        self.finish()

    def _epoch(
        self, bar: Progress, interrupt: InterruptFlag, checkpoint_seconds: float, max_seconds: float | None
    ) -> None:
        place, stepper, steps = self.place, self.stepper, self.feed.steps
        stepper.start(place.epoch, place.step)
        self.epoch_start, self.epoch_first = time.monotonic(), place.step
        while place.step < steps:
            # Dropout is a function of the place too: seeds, not generator states, survive an interruption.
            torch.manual_seed(mix(self.recipe.seed, place.epoch, place.step, self.world.rank, 1))
            first, last = place.step, self._until(place.step)
            for position in range(first, last):
                stepper.step(position)
            losses = stepper.losses[first:last].cpu()
            self._check(losses, first)
            place.step = last
            place.seconds = self.before + time.monotonic() - self.started
            rate = (last - self.epoch_first) * self.images_per_step / (time.monotonic() - self.epoch_start)
            bar.advance(
                last - first,
                epoch=f"{place.epoch + 1}/{self.recipe.epochs}",
                loss=f"{losses[-1].mean():.3f}",
                **self._shown(rate),
            )
            self._passed()
            if self.world.any(interrupt.raised):
                self.save()
                raise KeyboardInterrupt(f"interrupted in epoch {place.epoch + 1}, step {last}{self._where()}")
            if last < steps and self._out_of_time(max_seconds):
                return
            if last < steps and 0 < checkpoint_seconds < time.monotonic() - self.saved_at and self.world.size == 1:
                self.save()

    def _out_of_time(self, max_seconds: float | None) -> bool:
        return self.world.any(max_seconds is not None and time.monotonic() - self.started > max_seconds)

    @property
    def images_per_step(self) -> int:
        """Over all processes."""
        return self.feed.batch * self.world.size

    def _until(self, step: int) -> int:
        """How far the steps go, from this one on, before the host looks at the device."""
        return min(step + _STEPS_PER_LOOK.get(self.world.device.type, 1), self.feed.steps)

    def _passed(self) -> None:  # noqa: B027 - most have nothing to do here
        """Called whenever the host has looked at the device."""

    @abstractmethod
    def open(self) -> None:
        """Begin to write records."""

    @abstractmethod
    def _check(self, losses: Tensor, first: int) -> None:
        """Raise TuneError where a loss is not finite; `first` is the step of the first of them."""

    @abstractmethod
    def end_epoch(self, checkpoint_seconds: float) -> None:
        """Record the finished epoch and move the place on to the next; look and checkpoint where due."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint, if there is a place for it."""

    @abstractmethod
    def finish(self) -> None:
        """All epochs are done: leave the network and its files in their final state."""

    @abstractmethod
    def _shown(self, rate: float) -> dict[str, str]:
        """What the bar says, given images per second."""

    @abstractmethod
    def _where(self) -> str:
        """Where checkpoints go, in words that can follow a sentence."""
