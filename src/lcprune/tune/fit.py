"""Training a network: the one public function."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lcprune import bf16
from lcprune.data import AnyData
from lcprune.errors import TuneError
from lcprune.tune.distributed import World, parallel, this_world
from lcprune.tune.evaluate import pick_device
from lcprune.tune.feed import make_feed
from lcprune.tune.loop import Loop, import_whole
from lcprune.tune.recipe import Recipe
from lcprune.tune.recipe import recipe as make_recipe
from lcprune.tune.step import Stepper
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
    """

    model: nn.Module = field(repr=False)
    history: tuple[dict[str, Any], ...] = field(repr=False)
    finished: bool
    seconds: float
    val_loss: float
    val_score: float
    images_per_second: float

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
    folder = None if run_dir is None else Path(run_dir)
    teacher = teacher_of(recipe, teacher)
    where = pick_device(device)
    recipe = settled(recipe, model, where)
    with this_world(where) as world:
        run = Training(model, dataset, recipe, folder, resume, writes=world.first)
        with training_settings(world.device, [model, teacher]):
            with one_network(run, teacher, world, workers) as loop:
                done = loop.train(progress, checkpoint_seconds, max_seconds)
            if done:
                run.finish(world.device)
    return fit_result(run)


def teacher_of(recipe: Recipe, teacher: nn.Module | None) -> nn.Module | None:
    """Who teaches, if anybody."""
    if recipe.distill > 0 and teacher is None:
        raise TuneError(f"distill={recipe.distill} needs a teacher: pass the unpruned network")
    return teacher if recipe.distill > 0 else None


def settled(recipe: Recipe, model: nn.Module, device: torch.device) -> Recipe:
    """The recipe with the precision that it comes to on a device; refused where that does not work."""
    bf16.refuse_network(model, device, TuneError)
    return replace(recipe, precision=bf16.precision_on(recipe.precision, device, TuneError))


@contextmanager
def training_settings(device: torch.device, networks: Sequence[nn.Module | None]) -> Iterator[None]:
    """Global switches of PyTorch as training wants them; they, and the networks' mode and layout, are put back."""
    modes = [(network, network.training) for network in networks if network is not None]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), benchmarking(True):
        try:
            import_whole("torch._dynamo")  # as PyTorch does with its first optimizer
            yield
        finally:
            for network, training in modes:
                network.train(training).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextmanager
def benchmarking(wanted: bool) -> Iterator[None]:
    """Whether cuDNN tries which of its kernels is the fastest for a shape that it has not met."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def one_network(run: Training, teacher: nn.Module | None, world: World, workers: int) -> Iterator[Loop]:
    """The loop that trains one network, inside `training_settings`."""
    model, device, recipe = run.model, world.device, run.recipe
    flat = all(parameter.ndim < 5 for parameter in model.parameters())  # volumes have a layout of their own
    layout = torch.channels_last if recipe.channels_last and flat else torch.contiguous_format
    model.to(device=device, memory_format=layout).train()  # type: ignore[call-overload]
    if teacher is not None:
        teacher.to(device=device, memory_format=layout).eval()  # type: ignore[call-overload]
    dataset, share = run.dataset, (world.rank, world.size)
    feed = make_feed(dataset, recipe.batch_size, recipe.augment, recipe.seed, device, share, workers)
    with parallel(model, world) as network:
        if recipe.compile and world.size == 1:
            network = torch.compile(model, dynamic=False)  # type: ignore[assignment]
        # A graph across processes would have to capture their communication too; they run eagerly.
        capture = device.type == "cuda" and recipe.cuda_graph and world.size == 1 and feed.capturable
        own = dict(model.named_parameters())
        groups = [([own[name] for name in names], [rate]) for names, rate in run.groups()]
        task = dataset.loss_fn, dataset.classifies
        loop = Loop([run], feed, Stepper(network, feed, [recipe], groups, teacher, capture, *task), world, workers)
        run.load(loop.kept(0))
        yield loop


def fit_result(run: Training) -> FitResult:
    """What a training came to."""
    summary = run.summary()
    found = (summary[key] for key in ("val_loss", f"val_{run.score.name}", "images_per_second"))
    loss, score, rate = (math.nan if value is None else value for value in found)
    return FitResult(
        model=run.model,
        history=tuple(run.place.history),
        finished=run.finished,
        seconds=run.place.seconds,
        val_loss=loss,
        val_score=score,
        images_per_second=rate,
    )
