"""Training a network: the one public function."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lcprune import bf16
from lcprune.data import AnyData
from lcprune.errors import TuneError
from lcprune.tune.distributed import join
from lcprune.tune.evaluate import pick_device
from lcprune.tune.interrupt import import_whole
from lcprune.tune.recipe import Recipe
from lcprune.tune.recipe import recipe as make_recipe
from lcprune.tune.training import Training


@dataclass(frozen=True, eq=False)
class FitResult:
    """What training gave.

    Attributes:
        model: the network that was passed in, trained in place.
        history: one record per epoch: epoch, lr, train_loss, train_accuracy, val_loss, val_accuracy (of another score
            its name instead), images_per_second, seconds.
        finished: False when the time limit came first; the checkpoint knows how to go on.
        seconds: training time, over all sessions of the run.
        val_loss: at the last look, or NaN without a validation split.
        val_score: likewise; accuracy, from 0 to 1, unless the data say otherwise.
        images_per_second: median over epochs.
        run_dir: where the files are, if anywhere.
    """

    model: nn.Module = field(repr=False)
    history: tuple[dict[str, Any], ...] = field(repr=False)
    finished: bool
    seconds: float
    val_loss: float
    val_score: float
    images_per_second: float
    run_dir: Path | None

    @property
    def val_accuracy(self) -> float:
        """The score, where that is accuracy."""
        return self.val_score


def fit(
    model: nn.Module,
    dataset: AnyData,
    recipe: Recipe | str = "finetune",
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    teacher: nn.Module | None = None,
    progress: bool = True,
    device: str | torch.device | None = None,
    workers: int = 4,
    checkpoint_seconds: float = 30.0,
    max_seconds: float | None = None,
) -> FitResult:
    """Train a network, in place.

    Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt. Under `torchrun` or
    `accelerate launch` every process calls this with the same arguments.

    Args:
        model: the network; it ends up on the device.
        dataset: trained on its training split; its validation split is looked at after epochs. It says the loss and the
            score.
        recipe: how, or the name of a preset.
        run_dir: for recipe.json, metrics.jsonl, checkpoint.safetensors, model.safetensors and result.json.
        resume: go on from the checkpoint in `run_dir`, where there is one.
        teacher: the network to imitate when the recipe's `distill` is above 0, usually the unpruned one.
        progress: show a bar.
        device: None for the GPU where there is one.
        workers: processes that decode image files.
        checkpoint_seconds: least time between checkpoints.
        max_seconds: checkpoint and return unfinished when this session has taken so long.
    """
    recipe = make_recipe(recipe) if isinstance(recipe, str) else recipe
    if recipe.distill > 0 and teacher is None:
        raise TuneError(f"distill={recipe.distill} needs a teacher: pass the unpruned network")
    folder = None if run_dir is None else Path(run_dir)
    if folder is not None and not resume and (folder / "checkpoint.safetensors").exists():
        raise TuneError(f"{folder} holds a run already: pass resume=True to go on with it, or choose another folder")
    where = pick_device(device)
    recipe = settled(recipe, model, where)
    world = join(where)
    try:
        run = Training(model, dataset, recipe, folder, teacher, world, workers)
        with training_settings(world.device, model):
            try:
                import_whole("torch._dynamo")  # as PyTorch does with its first optimizer
                run.prepare(resume)
                run.train(progress, checkpoint_seconds, max_seconds)
            finally:
                run.restore()
        return fit_result(run)
    finally:
        world.leave()


def settled(recipe: Recipe, model: nn.Module, device: torch.device) -> Recipe:
    """The recipe with the precision that it comes to on a device; refused where that does not work."""
    bf16.refuse_network(model, device, TuneError)
    return replace(recipe, precision=bf16.settle(recipe.precision, device, TuneError))


def fit_result(run: Training) -> FitResult:
    """What a training came to."""
    summary = run.summary()
    found = (summary[key] for key in ("val_loss", f"val_{run.dataset.compared_by.name}", "images_per_second"))
    loss, score, rate = (math.nan if value is None else value for value in found)
    return FitResult(
        model=run.model,
        history=tuple(run.place.history),
        finished=run.finished,
        seconds=run.place.seconds,
        val_loss=loss,
        val_score=score,
        images_per_second=rate,
        run_dir=run.folder,
    )


@contextmanager
def training_settings(device: torch.device, model: nn.Module) -> Iterator[None]:
    """Global switches of PyTorch as training wants them; they, and the network's mode, are put back."""
    training = model.training
    benchmark = torch.backends.cudnn.benchmark
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
            model.train(training)
