"""One network in training: how it is trained, how far it is, and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.data import AnyData
from lcprune.errors import TuneError
from lcprune.files import atomic_write, write_json
from lcprune.models import head_name
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place
from lcprune.tune.evaluate import evaluate, recalibrate
from lcprune.tune.recipe import Recipe

METRICS = "metrics.jsonl"  # one record per epoch


class Training:
    """What the loop has of a network between its steps.

    Args:
        resume: go on from the checkpoint in the folder, where there is one; else there must be none.
        writes: whether this process is the one that writes files.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: AnyData,
        recipe: Recipe,
        folder: Path | None = None,
        resume: bool = False,
        writes: bool = True,
    ) -> None:
        if dataset.loss_fn is not None and (recipe.distill or recipe.label_smoothing):
            said = f"distill={recipe.distill}" if recipe.distill else f"label_smoothing={recipe.label_smoothing}"
            raise TuneError(f"{said} is a part of cross-entropy: with a loss of your own leave it out")
        self.model, self.dataset, self.recipe, self.folder = model, dataset, recipe, folder
        self.file = None if folder is None else folder / "checkpoint.safetensors"
        if self.file is not None and not resume and self.file.exists():
            raise TuneError(
                f"{folder} holds a run already: pass resume=True to go on with it, or choose another folder"
            )
        self.written = folder if writes else None
        self.score = dataset.compared_by
        self.place = Place()
        self.finished = False

    def groups(self) -> list[tuple[list[str], float]]:
        """Names of the parameters that are trained alike, and the learning rate that they begin with."""
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        if not trained:
            raise TuneError("no parameter of the network wants a gradient: nothing to train")
        if self.recipe.head_lr is None:
            return [(trained, self.recipe.lr)]
        head = head_name(self.model)
        last = [name for name in trained if name.rpartition(".")[0] == head]
        rest = [name for name in trained if name not in last]
        return [(part, lr) for part, lr in ((rest, self.recipe.lr), (last, self.recipe.head_lr)) if part]

    def load(self, kept: Mapping[str, Tensor]) -> None:
        """Take up the checkpoint, if there is one; `kept` receives what it has beside weights."""
        if self.file is not None and self.file.exists():
            self.place = checkpoint.load(self.file, self.model, kept, self._identity())

    def save(self, kept: Mapping[str, Tensor]) -> None:
        """Write a checkpoint."""
        if self.written and self.file:
            checkpoint.save(self.file, self.model, kept, self.place, self._identity())

    def _identity(self) -> dict[str, Any]:
        """What two sessions of one run have in common."""
        settings = self.recipe.to_json()
        del settings["eval_every"]  # looking does not change the weights
        return {
            **settings,
            "data": self.dataset.name.partition(":")[0],
            "training images": len(self.dataset.train),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    def open(self) -> None:
        """Begin to write records: exactly what the checkpoint knows, for a killed run may have written one more."""
        if self.written:
            write_json(self.written / "recipe.json", self.recipe.to_json())
            with atomic_write(self.written / METRICS) as temporary:
                temporary.write_text("".join(map(_line, self.place.history)), encoding="utf-8")

    def record(self, epoch: dict[str, Any]) -> None:
        """Write one epoch down."""
        if self.written:
            with open(self.written / METRICS, "a", encoding="utf-8") as out:
                out.write(_line(epoch))

    def look(self, due: bool, device: torch.device, workers: int) -> dict[str, float | None]:
        """Loss and score on the validation images, as fields of a record; None where no look is due."""
        looked: tuple[float | None, float | None] = (None, None)
        if due and self.dataset.val:
            precision = self.recipe.precision
            looked = evaluate(self.model, self.dataset, "val", device=device, precision=precision, workers=workers)
        return {"val_loss": looked[0], f"val_{self.score.name}": looked[1]}

    def finish(self, device: torch.device) -> None:
        """All epochs are done: leave the network and its files in their final state."""
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.recipe.recalibrate:
            recalibrate(self.model, self.dataset, self.recipe.recalibrate, seed=self.recipe.seed, device=device)
        self.finished = True
        if self.written:
            checkpoint.save_weights(self.written / "model.safetensors", self.model)
            write_json(self.written / "result.json", self.summary())

    def summary(self) -> dict[str, Any]:
        """The figures of the run so far, None where there are none."""
        history = self.place.history
        looked: dict[str, Any] = next((record for record in reversed(history) if record["val_loss"] is not None), {})
        rates = sorted(record["images_per_second"] for record in history)
        return {
            "finished": self.finished,
            "epochs": self.place.epoch,
            "seconds": round(self.place.seconds, 3),
            "val_loss": looked.get("val_loss"),
            f"val_{self.score.name}": looked.get(f"val_{self.score.name}"),
            "images_per_second": rates[len(rates) // 2] if rates else None,
        }


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
