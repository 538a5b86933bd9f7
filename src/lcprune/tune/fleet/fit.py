"""Training many networks of one shape, or cuts of it: the one public function."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lcprune.copies import copy_of, unwrap
from lcprune.data import ArraySplit, Dataset
from lcprune.errors import TuneError
from lcprune.tune.evaluate import pick_device
from lcprune.tune.fit import FitResult, fit_result, settled, teacher_of, training_settings
from lcprune.tune.fleet.run import Fleet, Looks
from lcprune.tune.recipe import Recipe
from lcprune.tune.recipe import recipe as make_recipe
from lcprune.tune.training import Training

if TYPE_CHECKING:
    from lcprune.plan import Plan

# What recipes of one fleet may differ in.
_OWN = {"lr", "head_lr", "lr_decay", "milestones", "gamma", "warmup_epochs", "weight_decay", "label_smoothing"}
_OWN |= {"name", "seed"}


def fit_fleet(
    original: nn.Module,
    plans: Sequence[Plan | None],
    dataset: Dataset,
    recipe: Recipe | str | Sequence[Recipe] = "finetune",
    *,
    models: Sequence[nn.Module] | None = None,
    seeds: Sequence[int] | None = None,
    run_dirs: Sequence[str | os.PathLike[str]] | None = None,
    device: str | torch.device | None = None,
    teacher: nn.Module | None = None,
    resume: bool = False,
    progress: bool = True,
    checkpoint_seconds: float = 60.0,
    max_seconds: float | None = None,
    looks: Looks | None = None,
) -> list[FitResult]:
    """Train many cuts of one network at once, in place: what `fit` would make of each, to rounding.

    The cuts run as one network of the original's width with a set of weights for each of them, in which removed
    channels are zeros, and stay so. That does more arithmetic than the cuts need, in far fewer and larger pieces: it
    pays on a GPU that small networks leave idle, and not on a CPU. Networks that are not cut, such as several random
    starts, train together likewise.

    Every member's folder gets the files that `fit` writes, so that either can go on with what the other began.

    Args:
        original: the network that was cut; it is not changed.
        plans: one per member; None for a network that is not cut.
        dataset: arrays of images, such as CIFAR's.
        recipe: how, or the name of a preset; or one recipe per member. These may differ in learning rates, how
            they fall, weight decay, label smoothing and seed.
        models: the members' networks; by default each plan applied to the original.
        seeds: of each member's order and augmentation; by default the recipe's.
        run_dirs: folders of the members' files.
        device: None for the GPU where there is one.
        teacher: the network to imitate when the recipe's `distill` is above 0; it runs once for all members.
        resume: go on from the checkpoints in `run_dirs`, where there are some; all must be at the same place.
        progress: show a bar.
        checkpoint_seconds: least time between checkpoints.
        max_seconds: checkpoint and return unfinished when this session has taken so long.
        looks: number of steps -> function that is then called with the list of networks in evaluation mode; it may
            not train them. 0 is before the first step.

    Returns:
        One result per member. Its `seconds` and its rate are what passed on the clock, while all trained.

    Raises:
        TuneError: for networks whose cuts are more than a selection of weights, or in which zero weights are not
            absent ones, for layers that a fleet does not know, and for image files: use `fit` there. For recipes that
            differ in more than they may.
        LostMembers: if the loss of some members is not finite; its `members` are their numbers.
    """
    began, count, where = time.monotonic(), len(plans), pick_device(device)
    recipe = make_recipe(recipe) if isinstance(recipe, str) else recipe
    recipes = [recipe] * count if isinstance(recipe, Recipe) else recipe
    recipes = [settled(own, original, where) for own in recipes]
    seeds = [own.seed for own in recipes] if seeds is None else seeds
    folders = [None] * count if run_dirs is None else [Path(folder) for folder in run_dirs]
    given = {"recipes": recipes, "seeds": seeds, "run_dirs": folders, "models": plans if models is None else models}
    _refuse(count, given, recipes, dataset)
    named = [folder.resolve() for folder in folders if folder is not None]
    if len(set(named)) < len(named):
        raise TuneError(f"run_dirs names a folder twice: {', '.join(map(str, folders))}")
    teacher = teacher_of(recipes[0], teacher)
    if models is None:
        models = [copy_of(unwrap(original)) if plan is None else plan.apply(original) for plan in plans]
    members = [
        Training(model, dataset, replace(own, seed=seed), folder, resume)
        for model, own, seed, folder in zip(models, recipes, seeds, folders, strict=True)
    ]
    with training_settings(where, [*models, teacher]):
        fleet = Fleet(original, plans, members, teacher, where, looks)
        left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
        fleet.train(progress, checkpoint_seconds, left)
    return [fit_result(member) for member in members]


def _refuse(count: int, given: Mapping[str, Sequence[Any]], recipes: Sequence[Recipe], dataset: Dataset) -> None:
    if not count:
        raise TuneError("a fleet needs at least one plan")
    for what, some in given.items():
        if len(some) != count:
            raise TuneError(f"{len(some)} {what} for {count} plans: expected one for each")
    for name in sorted({field.name for field in fields(Recipe)} - _OWN):
        values = list(dict.fromkeys(getattr(own, name) for own in recipes))
        if len(values) > 1:
            raise TuneError(
                f"the recipes differ in {name} ({', '.join(map(repr, values))}), which is one for a whole fleet: train "
                "those that agree together"
            )
    if recipes[0].compile:
        raise TuneError("a fleet is not compiled: set compile=False, or tune each network with `fit`")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TuneError("a fleet trains in one process: start it without a launcher, or tune each network with `fit`")
    if not dataset.train:
        raise TuneError(f"{dataset.name} has no training images")
    if not dataset.classifies:
        raise TuneError(
            f"{dataset.name} has a loss of its own, and a fleet has cross-entropy: use `fit` for each network"
        )
    if not isinstance(dataset.train, ArraySplit):
        raise TuneError(
            f"{dataset.name} comes from image files, and a fleet is fed from arrays, such as CIFAR's: tune each "
            "network with `fit`"
        )
