"""The training loop: epochs of steps, with looks, checkpoints and ways out between them.

Ctrl-C is a request: finish the step, save, leave.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

from lcprune.errors import TuneError
from lcprune.progress import Progress
from lcprune.score import LOSS
from lcprune.tune.distributed import World
from lcprune.tune.feed import Feed, mix
from lcprune.tune.step import Stepper
from lcprune.tune.training import Training

# Steps between looks at the device. A look waits for it, so on a GPU they are rare.
_STEPS_PER_LOOK = {"cuda": 50, "cpu": 1}


class Loop:
    """Trains one network, or several that are stepped together (`fleet/run.py`).

    Of what is read here in the members' recipes, nothing differs between them. `workers` decode image files for looks.
    """

    def __init__(
        self, members: Sequence[Training], feed: Feed, stepper: Stepper, world: World, workers: int = 0
    ) -> None:
        self.members, self.feed, self.stepper, self.world, self.workers = members, feed, stepper, world, workers
        self.recipe = members[0].recipe
        self.images_per_step = feed.batch * world.size  # over all processes

    def train(self, progress: bool, checkpoint_seconds: float, max_seconds: float | None) -> bool:
        """Run epochs until done, interrupted or out of time; says whether all are done."""
        for member in self.members:
            member.open()
        self.epoch, self.step = self.members[0].place.epoch, self.members[0].place.step
        self.before = [member.place.seconds for member in self.members]
        self.saved_at = self.started = time.monotonic()
        self.checkpoint_seconds, self.max_seconds = checkpoint_seconds, max_seconds
        epochs, steps = self.recipe.epochs, self.feed.steps
        bar = Progress(self.recipe.name, total=epochs * steps, enabled=progress and self.world.first)
        with interruptions() as interrupt, bar:
            bar.advance(self.epoch * steps + self.step)
            while self.epoch < epochs:
                self._train_epoch(bar, interrupt)
                if self.step or (self.epoch < epochs and self._out_of_time()):
                    self.save()
                    return False
        return True

    def _train_epoch(self, bar: Progress, interrupt: threading.Event) -> None:
        """Do the rest of the epoch, or what there is time for."""
        stepper, steps, begun, done = self.stepper, self.feed.steps, time.monotonic(), self.step
        stepper.start(self.epoch, self.step)
        while self.step < steps:
            # Dropout is a function of the place too: seeds, not generator states, survive an interruption.
            torch.manual_seed(mix(self.recipe.seed, self.epoch, self.step, self.world.rank, 1))
            first, self.step = self.step, self.until()
            for position in range(first, self.step):
                stepper.step(position)
            losses = stepper.losses[first : self.step].cpu()
            self._check(losses)
            rate = (self.step - done) * self.images_per_step / (time.monotonic() - begun)
            bar.advance(
                self.step - first,
                epoch=f"{self.epoch + 1}/{self.recipe.epochs}",
                loss=f"{losses[-1].mean():.3f}",
                **self._shown(rate),
            )
            self.passed()
            if self.world.any(interrupt.is_set()):
                self.save()
                folders = [str(member.folder) for member in self.members if member.folder is not None]
                where = f"; saved in {', '.join(folders)}" if folders else ""
                raise KeyboardInterrupt(f"interrupted in epoch {self.epoch + 1}, step {self.step}{where}")
            if self.step < steps:
                if self._out_of_time():
                    return
                if 0 < self.checkpoint_seconds < time.monotonic() - self.saved_at and self.world.size == 1:
                    self.save()
        self.end_epoch((steps - done) * self.images_per_step / (time.monotonic() - begun))

    def end_epoch(self, rate: float) -> None:
        """Move on to the next epoch; look and checkpoint where due, and record what there was to see."""
        last, passed = self.epoch + 1 == self.recipe.epochs, time.monotonic() - self.started
        look = last or (self.epoch + 1) % self.recipe.eval_every == 0
        save = last or time.monotonic() - self.saved_at >= self.checkpoint_seconds
        if look or save:
            self.pull()
        self.epoch, self.step = self.epoch + 1, 0
        for number, member in enumerate(self.members):
            # Each is told the time as if it had waited for no other one's look.
            begun, hits = time.monotonic(), {}
            loss = float(self.world.mean(self.stepper.losses[:, number].double().mean()))
            if self.stepper.classifies:
                correct = float(self.world.mean(self.stepper.correct[number].double()))
                hits = {"train_accuracy": correct / (self.feed.steps * self.feed.batch)}
            record = {
                "epoch": self.epoch,
                "lr": member.recipe.lr * float(member.recipe.factors(self.epoch - 1, self.feed.steps)[-1]),
                "train_loss": loss,
                **hits,
                **member.look(look, self.world.device, self.workers),
                "images_per_second": round(rate, 1),
            }
            self._move(number, passed + time.monotonic() - begun)
            member.place.history.append({**record, "seconds": round(member.place.seconds, 3)})
        if save:
            self._write()
        for member in self.members:
            member.record(member.place.history[-1])

    def save(self, leave_out: Sequence[int] = ()) -> None:
        """Write checkpoints of all members but some."""
        self.pull()
        for number in range(len(self.members)):
            self._move(number, time.monotonic() - self.started)
        self._write(leave_out)

    def _move(self, number: int, passed: float) -> None:
        place = self.members[number].place
        place.epoch, place.step, place.seconds = self.epoch, self.step, self.before[number] + passed

    def _write(self, leave_out: Sequence[int] = ()) -> None:
        for number, member in enumerate(self.members):
            if number not in leave_out:
                member.save(self.kept(number))
        self.saved_at = time.monotonic()

    def kept(self, number: int) -> dict[str, Tensor]:
        """What a checkpoint keeps of a member beside its weights."""
        momentum = {f"momentum.{place}": tensor for place, tensor in enumerate(self.momentum(number))}
        correct = self.stepper.correct[number : number + 1]
        return {**momentum, "losses": self.stepper.losses[:, number], "correct": correct}

    def _check(self, losses: Tensor) -> None:
        """Raise TuneError where a loss (steps, members) of the last steps is not finite."""
        good = torch.isfinite(losses)
        if bool(good.all()):
            return
        lost = (~good.all(0)).nonzero().view(-1).tolist()
        bad = int((~good.all(1)).nonzero()[0])
        recipe, step, steps = self.members[lost[0]].recipe, self.step - len(losses) + bad, self.feed.steps
        rate = f"(learning rate {recipe.lr * recipe.factors(self.epoch, steps)[step]:g})"
        where = f"epoch {self.epoch + 1}, step {step + 1} of {steps}"
        raise self.failure(lost, float(losses[bad, lost[0]]), where, rate)

    def _out_of_time(self) -> bool:
        return self.world.any(self.max_seconds is not None and time.monotonic() - self.started > self.max_seconds)

    def _shown(self, rate: float) -> dict[str, str]:
        """What the bar says, given images per second."""
        score, key = self.members[0].score, f"val_{self.members[0].score.name}"
        found = [value for value in (member.summary()[key] for member in self.members) if value is not None]
        shown = {key if score is LOSS else score.name: score.text(sum(found) / len(found))} if found else {}
        return {**shown, "images/s": f"{rate * len(self.members):,.0f}"}

    # -- what is different in a fleet -----------------------------------------------------------------------

    def until(self) -> int:
        """How far the steps go before the host looks at the device."""
        return min(self.step + _STEPS_PER_LOOK.get(self.world.device.type, 1), self.feed.steps)

    def passed(self) -> None:
        """Called whenever the host has looked at the device."""

    def pull(self) -> None:
        """Give the members' networks the weights that the steps have made."""

    def momentum(self, number: int) -> list[Tensor]:
        """Of a member, in the order and shapes of what it trains."""
        return self.stepper.momentum

    def failure(self, lost: list[int], loss: float, where: str, rate: str) -> TuneError:
        """What to raise when the loss of some members is not finite."""
        file = self.members[0].file
        last = f"the last good checkpoint is {file}" if file is not None and file.exists() else "no checkpoint yet"
        return TuneError(f"the loss is {loss} in {where} {rate}; {last}. A lower lr or a warm-up may help.")


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Meanwhile, the first SIGINT only sets the event; the second one acts as it always does."""
    asked = threading.Event()
    # Only the main thread may set handlers; elsewhere Ctrl-C belongs to whoever runs the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def import_whole(name: str) -> None:
    """Import a module, and only then let Ctrl-C act: code in it may swallow KeyboardInterrupt."""
    if name not in sys.modules:
        with interruptions() as interrupt:
            importlib.import_module(name)
        if interrupt.is_set():
            raise KeyboardInterrupt
