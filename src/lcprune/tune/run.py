"""The training loop: epochs of steps, with looks, checkpoints and ways out between them."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.files import write_json
from lcprune.models import head_name
from lcprune.progress import Progress
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place
from lcprune.tune.distributed import World, norms_of, parallel, restore_norms
from lcprune.tune.evaluate import evaluate, recalibrate
from lcprune.tune.feed import make_feed, mix
from lcprune.tune.interrupt import InterruptFlag
from lcprune.tune.log import MetricsLog
from lcprune.tune.recipe import Recipe
from lcprune.tune.step import Stepper

# Steps between looks at the device. A look waits for it, so on a GPU they are rare.
_STEPS_PER_LOOK = {"cuda": 50, "cpu": 1}


class Run:
    """The state of one call of `fit`.

    Args:
        model: the network, trained in place.
        dataset: what it is trained on.
        recipe: how.
        folder: where the files go, if anywhere.
        teacher: imitated when the recipe says so.
        world: this process among its siblings.
        workers: processes that decode image files.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        recipe: Recipe,
        folder: Path | None,
        teacher: nn.Module | None,
        world: World,
        workers: int,
    ) -> None:
        self.model, self.dataset, self.recipe, self.folder = model, dataset, recipe, folder
        self.teacher = teacher if recipe.distill > 0 else None
        self.world, self.workers = world, workers
        self.norms = norms_of(model)
        self.teacher_mode = teacher is not None and teacher.training
        self.place = Place()
        self.finished = False

    # -- set-up ---------------------------------------------------------------------------------------------

    def prepare(self, resume: bool) -> None:
        """Move everything to its place, and take up a checkpoint."""
        device, recipe = self.world.device, self.recipe
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.model.to(device=device, memory_format=layout).train()  # type: ignore[call-overload]
        if self.teacher is not None:
            self.teacher.to(device=device, memory_format=layout).eval()  # type: ignore[call-overload]
        share = (self.world.rank, self.world.size)
        self.feed = make_feed(self.dataset, recipe.batch_size, recipe.augment, recipe.seed, device, share, self.workers)
        network = self.model
        if self.world.size > 1:
            network = parallel(self.model, self.world)
        elif recipe.compile:
            network = torch.compile(self.model, dynamic=False)  # type: ignore[assignment]
        # A graph across processes would have to capture their communication too; they run eagerly.
        capture = device.type == "cuda" and recipe.cuda_graph and self.world.size == 1
        self.stepper = Stepper(network, self.feed, recipe, self._groups(), self.teacher, capture)
        file = self._checkpoint_file()
        if resume and file is not None and file.exists():
            self.place = checkpoint.load(file, self.model, self._extra(), self._identity())

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            raise TuneError("no parameter of the network wants a gradient: nothing to train")
        if self.recipe.head_lr is None:
            return [(list(trained.values()), self.recipe.lr)]
        head = head_name(self.model)
        last = [p for name, p in trained.items() if name.rpartition(".")[0] == head]
        rest = [p for name, p in trained.items() if name.rpartition(".")[0] != head]
        return [(part, lr) for part, lr in ((rest, self.recipe.lr), (last, self.recipe.head_lr)) if part]

    def _extra(self) -> dict[str, Tensor]:
        extra = {f"momentum.{number}": tensor for number, tensor in enumerate(self.stepper.momentum)}
        return {**extra, "losses": self.stepper.losses, "correct": self.stepper.correct}

    def _identity(self) -> dict[str, Any]:
        """What two sessions of one run have in common."""
        settings = self.recipe.to_json()
        del settings["eval_every"]  # looking does not change the weights
        shapes = {name: list(p.shape) for name, p in self.model.named_parameters()}
        return {
            **settings,
            "data": self.dataset.name.partition(":")[0],
            "training images": len(self.dataset.train),
            "parameters": sum(math.prod(shape) for shape in shapes.values()),
        }

    def _checkpoint_file(self) -> Path | None:
        return None if self.folder is None else self.folder / "checkpoint.safetensors"

    # -- the loop -------------------------------------------------------------------------------------------

    def train(self, progress: bool, checkpoint_seconds: float, max_seconds: float | None) -> None:
        """Run epochs until done, interrupted or out of time."""
        recipe, place, steps = self.recipe, self.place, self.feed.steps
        writes = self.folder if self.world.first else None
        if writes is not None:
            write_json(writes / "recipe.json", recipe.to_json())
        log = MetricsLog(writes, place.history)
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
                    log.write(self._close_epoch(checkpoint_seconds))
                if place.epoch < recipe.epochs and (place.step or self._out_of_time(max_seconds)):
                    self._save()
                    log.close()
                    return
        self.restore()
        if recipe.recalibrate:
            recalibrate(self.model, self.dataset, recipe.recalibrate, seed=recipe.seed, device=self.world.device)
        self.finished = True
        if writes is not None:
            checkpoint.save_weights(writes / "model.safetensors", self.model)
            write_json(writes / "result.json", self.summary())
        log.close()

    def _epoch(
        self, bar: Progress, interrupt: InterruptFlag, checkpoint_seconds: float, max_seconds: float | None
    ) -> None:
        place, stepper, steps = self.place, self.stepper, self.feed.steps
        look = _STEPS_PER_LOOK.get(self.world.device.type, 1)
        stepper.start(place.epoch, place.step)
        self.epoch_start, self.epoch_first = time.monotonic(), place.step
        while place.step < steps:
            # Dropout is a function of the place too: seeds, not generator states, survive an interruption.
            torch.manual_seed(mix(self.recipe.seed, place.epoch, place.step, self.world.rank, 1))
            first, last = place.step, min(place.step + look, steps)
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
                loss=f"{losses[-1]:.3f}",
                **self._shown(rate),
            )
            if self.world.any(interrupt.raised):
                self._save()
                where = f"; saved in {self.folder}" if self.folder else ""
                raise KeyboardInterrupt(f"interrupted in epoch {place.epoch + 1}, step {last}{where}")
            if last < steps and self._out_of_time(max_seconds):
                return
            if last < steps and 0 < checkpoint_seconds < time.monotonic() - self.saved_at and self.world.size == 1:
                self._save()

    def _out_of_time(self, max_seconds: float | None) -> bool:
        return self.world.any(max_seconds is not None and time.monotonic() - self.started > max_seconds)

    @property
    def images_per_step(self) -> int:
        """Over all processes."""
        return self.feed.batch * self.world.size

    def _shown(self, rate: float) -> dict[str, str]:
        history = self.place.history
        accuracy = next((r["val_accuracy"] for r in reversed(history) if r["val_accuracy"] is not None), None)
        shown = {} if accuracy is None else {"accuracy": f"{accuracy:.2%}"}
        return {**shown, "images/s": f"{rate:,.0f}"}

    def _check(self, losses: Tensor, first: int) -> None:
        good = torch.isfinite(losses)
        if bool(good.all()):
            return
        step = int((~good).nonzero()[0])
        file = self._checkpoint_file()
        last = f"the last good checkpoint is {file}" if file is not None and file.exists() else "no checkpoint yet"
        factor = self.recipe.factors(self.place.epoch, self.feed.steps)[first + step]
        raise TuneError(
            f"the loss is {float(losses[step])} in epoch {self.place.epoch + 1}, step {first + step + 1} of "
            f"{self.feed.steps} (learning rate {self.recipe.lr * factor:g}); {last}. A lower lr or "
            "a warm-up may help."
        )

    def _close_epoch(self, checkpoint_seconds: float) -> dict[str, Any]:
        """Record the finished epoch, look at the validation split where due, checkpoint where due."""
        place, recipe, stepper = self.place, self.recipe, self.stepper
        seconds = time.monotonic() - self.epoch_start
        done = self.feed.steps - self.epoch_first
        record: dict[str, Any] = {
            "epoch": place.epoch + 1,
            "lr": recipe.lr * float(recipe.factors(place.epoch, self.feed.steps)[-1]),
            "train_loss": float(self.world.mean(stepper.losses.double().mean())),
            "train_accuracy": float(self.world.mean(stepper.correct.double())) / (self.feed.steps * self.feed.batch),
            "val_loss": None,
            "val_accuracy": None,
            "images_per_second": round(done * self.images_per_step / seconds, 1),
        }
        due = (place.epoch + 1) % recipe.eval_every == 0 or place.epoch + 1 == recipe.epochs
        if due and len(self.dataset.val):
            looked = evaluate(
                self.model,
                self.dataset,
                "val",
                device=self.world.device,
                precision=recipe.precision,
                workers=self.workers,
            )
            record["val_loss"], record["val_accuracy"] = looked
        place.epoch, place.step = place.epoch + 1, 0
        place.seconds = self.before + time.monotonic() - self.started
        record["seconds"] = round(place.seconds, 3)
        place.history.append(record)
        if place.epoch == recipe.epochs or time.monotonic() - self.saved_at >= checkpoint_seconds:
            self._save()
        return record

    def _save(self) -> None:
        file = self._checkpoint_file()
        if file is not None and self.world.first:
            checkpoint.save(file, self.model, self._extra(), self.place, self._identity())
        self.saved_at = time.monotonic()

    # -- the end --------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The figures of the run so far, None where there are none."""
        history = self.place.history
        looked = [record for record in history if record["val_accuracy"] is not None]
        rates = sorted(record["images_per_second"] for record in history)
        return {
            "finished": self.finished,
            "epochs": self.place.epoch,
            "seconds": round(self.place.seconds, 3),
            "val_loss": looked[-1]["val_loss"] if looked else None,
            "val_accuracy": looked[-1]["val_accuracy"] if looked else None,
            "images_per_second": rates[len(rates) // 2] if rates else None,
        }

    def restore(self) -> None:
        """Give the networks their own batch-norm modules and memory layout back, and the teacher its mode."""
        restore_norms(self.model, self.norms)
        for network in (self.model, self.teacher):
            if network is not None:
                network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.teacher is not None:
            self.teacher.train(self.teacher_mode)
