"""Training many networks of one shape, or cuts of it: the one public function."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from lcprune.copies import unwrap
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune.distributed import World
from lcprune.tune.evaluate import pick_device
from lcprune.tune.fit import FitResult, fit_result, settled, training_settings
from lcprune.tune.fleet.member import FleetMember
from lcprune.tune.fleet.run import Fleet, Looks, LostMembers
from lcprune.tune.fleet.stack import Layout
from lcprune.tune.interrupt import import_whole
from lcprune.tune.recipe import Recipe
from lcprune.tune.recipe import recipe as make_recipe

if TYPE_CHECKING:
    from lcprune.plan import Plan

__all__ = ["LostMembers", "fit_fleet"]

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
    began = time.monotonic()
    recipes = [make_recipe(recipe)] * len(plans) if isinstance(recipe, str) else recipe
    folders = None if run_dirs is None else [Path(folder) for folder in run_dirs]
    for folder in folders or ():
        if not resume and (folder / "checkpoint.safetensors").exists():
            raise TuneError(
                f"{folder} holds a run already: pass resume=True to go on with it, or choose another folder"
            )
    fleet = make_fleet(original, plans, dataset, recipes, models, seeds, folders, device, teacher, looks)
    with training_settings(fleet.world.device, original):
        try:
            import_whole("torch._dynamo")  # as PyTorch does with its first optimizer
            fleet.prepare(resume)
            left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
            fleet.train(progress, checkpoint_seconds, left)
        finally:
            fleet.restore()
    return [fit_result(member) for member in fleet.members]


def make_fleet(
    original: nn.Module,
    plans: Sequence[Plan | None],
    dataset: Dataset,
    recipe: Recipe | Sequence[Recipe],
    models: Sequence[nn.Module] | None = None,
    seeds: Sequence[int] | None = None,
    folders: Sequence[Path] | None = None,
    device: str | torch.device | None = None,
    teacher: nn.Module | None = None,
    looks: Looks | None = None,
) -> Fleet:
    """A fleet that is ready to be prepared; arguments as of `fit_fleet`."""
    count = len(plans)
    where = pick_device(device)
    given_recipes = [recipe] * count if isinstance(recipe, Recipe) else list(recipe)
    recipes = [settled(own, original, where) for own in given_recipes]
    seeds = [own.seed for own in recipes] if seeds is None else list(seeds)
    places: list[Path | None] = [None] * count if folders is None else list(folders)
    given = {"recipes": len(recipes), "seeds": len(seeds), "run_dirs": len(places)}
    _refuse(recipes, teacher, given if models is None else {**given, "models": len(models)}, count)
    cuts = [_cut(original, plan) for plan in plans] if models is None else list(models)
    if folders is not None and len({folder.resolve() for folder in folders}) < count:
        raise TuneError(f"run_dirs names a folder twice: {', '.join(map(str, folders))}")
    world = World(0, 1, where)
    members = [
        FleetMember(number, cut, Layout(original, plan), dataset, replace(own, seed=seed), folder, world)
        for number, (cut, plan, own, seed, folder) in enumerate(zip(cuts, plans, recipes, seeds, places, strict=True))
    ]
    return Fleet(original, members, teacher, world, looks or {})


def _cut(original: nn.Module, plan: Plan | None) -> nn.Module:
    return copy.deepcopy(unwrap(original)) if plan is None else plan.apply(original)


def _refuse(recipes: Sequence[Recipe], teacher: nn.Module | None, given: dict[str, int], count: int) -> None:
    if not count:
        raise TuneError("a fleet needs at least one plan")
    for what, number in given.items():
        if number != count:
            raise TuneError(f"{number} {what} for {count} plans: expected one for each")
    recipe = recipes[0]
    for name in sorted({field.name for field in fields(Recipe)} - _OWN):
        values = list(dict.fromkeys(getattr(own, name) for own in recipes))
        if len(values) > 1:
            raise TuneError(
                f"the recipes differ in {name} ({', '.join(map(repr, values))}), which is one for a whole fleet: train "
                "those that agree together"
            )
    if recipe.distill > 0 and teacher is None:
        raise TuneError(f"distill={recipe.distill} needs a teacher: pass the unpruned network")
    if recipe.compile:
        raise TuneError("a fleet is not compiled: set compile=False, or tune each network with `fit`")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TuneError("a fleet trains in one process: start it without a launcher, or tune each network with `fit`")
