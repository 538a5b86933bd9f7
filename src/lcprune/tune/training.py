"""One call of `fit`: a network, its optimizer, its folder."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.data import AnyData
from lcprune.errors import TuneError
from lcprune.files import atomic_write, write_json
from lcprune.models import head_name
from lcprune.score import LOSS
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place
from lcprune.tune.distributed import World, norms_of, parallel, restore_norms
from lcprune.tune.evaluate import evaluate, recalibrate
from lcprune.tune.feed import make_feed
from lcprune.tune.loop import Loop
from lcprune.tune.recipe import Recipe
from lcprune.tune.step import Stepper

METRICS = "metrics.jsonl"  # one record per epoch


class Training(Loop):
    """The state of one call of `fit`."""

    def __init__(
        self,
        model: nn.Module,
        dataset: AnyData,
        recipe: Recipe,
        folder: Path | None,
        teacher: nn.Module | None,
        world: World,
        workers: int,
    ) -> None:
        self.model, self.dataset, self.recipe, self.folder = model, dataset, recipe, folder
        if dataset.loss_fn is not None and (recipe.distill or recipe.label_smoothing):
            said = f"distill={recipe.distill}" if recipe.distill else f"label_smoothing={recipe.label_smoothing}"
            raise TuneError(f"{said} is a part of cross-entropy: with a loss of your own leave it out")
        self.score = dataset.compared_by
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
        flat = all(parameter.ndim < 5 for parameter in self.model.parameters())  # volumes have a layout of their own
        layout = torch.channels_last if recipe.channels_last and flat else torch.contiguous_format
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
        capture = device.type == "cuda" and recipe.cuda_graph and self.world.size == 1 and self.feed.capturable
        task = self.dataset.loss_fn, self.dataset.classifies
        self.stepper = Stepper(network, self.feed, recipe, self._groups(), self.teacher, capture, *task)
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

    # -- between steps --------------------------------------------------------------------------------------

    def open(self) -> None:
        if self.folder is None or not self.world.first:
            return
        write_json(self.folder / "recipe.json", self.recipe.to_json())
        # Exactly what the checkpoint knows: a killed run may have written one epoch more.
        with atomic_write(self.folder / METRICS) as temporary:
            temporary.write_text("".join(map(_line, self.place.history)), encoding="utf-8")

    def finish(self) -> None:
        recipe = self.recipe
        self.restore()
        if recipe.recalibrate:
            recalibrate(self.model, self.dataset, recipe.recalibrate, seed=recipe.seed, device=self.world.device)
        self.finished = True
        if self.folder is not None and self.world.first:
            checkpoint.save_weights(self.folder / "model.safetensors", self.model)
            write_json(self.folder / "result.json", self.summary())

    def _where(self) -> str:
        return f"; saved in {self.folder}" if self.folder else ""

    def _shown(self, rate: float) -> dict[str, str]:
        history = self.place.history
        key = f"val_{self.score.name}"
        looked = next((record[key] for record in reversed(history) if record[key] is not None), None)
        shown = {} if looked is None else {key if self.score is LOSS else self.score.name: self.score.text(looked)}
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

    def end_epoch(self, checkpoint_seconds: float) -> None:
        place, recipe, stepper = self.place, self.recipe, self.stepper
        seconds = time.monotonic() - self.epoch_start
        done = self.feed.steps - self.epoch_first
        record: dict[str, Any] = {
            "epoch": place.epoch + 1,
            "lr": recipe.lr * float(recipe.factors(place.epoch, self.feed.steps)[-1]),
            "train_loss": float(self.world.mean(stepper.losses.double().mean())),
            **self._hits(),
            "val_loss": None,
            f"val_{self.score.name}": None,
            "images_per_second": round(done * self.images_per_step / seconds, 1),
        }
        due = (place.epoch + 1) % recipe.eval_every == 0 or place.epoch + 1 == recipe.epochs
        if due and self.dataset.val:
            looked = evaluate(
                self.model,
                self.dataset,
                "val",
                device=self.world.device,
                precision=recipe.precision,
                workers=self.workers,
            )
            record["val_loss"], record[f"val_{self.score.name}"] = looked
        place.epoch, place.step = place.epoch + 1, 0
        place.seconds = self.before + time.monotonic() - self.started
        record["seconds"] = round(place.seconds, 3)
        place.history.append(record)
        if place.epoch == recipe.epochs or time.monotonic() - self.saved_at >= checkpoint_seconds:
            self.save()
        self.record(record)

    def _hits(self) -> dict[str, float]:
        if not self.dataset.classifies:
            return {}
        images = self.feed.steps * self.feed.batch
        return {"train_accuracy": float(self.world.mean(self.stepper.correct.double())) / images}

    def record(self, epoch: dict[str, Any]) -> None:
        """Write one epoch down."""
        if self.folder is not None and self.world.first:
            with open(self.folder / METRICS, "a", encoding="utf-8") as out:
                out.write(_line(epoch))

    def save(self) -> None:
        file = self._checkpoint_file()
        if file is not None and self.world.first:
            checkpoint.save(file, self.model, self._extra(), self.place, self._identity())
        self.saved_at = time.monotonic()

    # -- the end --------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The figures of the run so far, None where there are none."""
        history = self.place.history
        key = f"val_{self.score.name}"
        looked = [record for record in history if record["val_loss"] is not None]
        rates = sorted(record["images_per_second"] for record in history)
        return {
            "finished": self.finished,
            "epochs": self.place.epoch,
            "seconds": round(self.place.seconds, 3),
            "val_loss": looked[-1]["val_loss"] if looked else None,
            key: looked[-1][key] if looked else None,
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


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
