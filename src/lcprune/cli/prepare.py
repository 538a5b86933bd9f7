"""What is checked and made before a run starts: names, and the settings of search, tuning and methods."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
import typer

import lcprune
from lcprune import bf16
from lcprune.cli.command import SECTIONS, UsageError, resolve_section, sections
from lcprune.errors import ConfigError, MetricError, SearchError, TuneError
from lcprune.evaluate import Evaluation
from lcprune.search import Search
from lcprune.tune import Recipe

# What the section `[search]` can say: all but what is not a plain value.
_SEARCH = tuple(item.name for item in fields(Search))
_EVALUATION = tuple(item.name for item in fields(Evaluation) if item.name not in ("data", "loss_fn", "prepare"))


def check_names(methods: Sequence[str], metric: str) -> None:
    """Refuse unknown methods and metrics before anything is built."""
    try:
        for method in methods:
            lcprune.methods.get(method)
        needs_data(metric)
    except (ConfigError, MetricError) as error:
        raise UsageError(str(error)) from None


def needs_data(metric: str) -> bool:
    """Whether a metric does; "auto" wants none of a method that has none."""
    return metric != "auto" and lcprune.metrics.get(metric).needs_data


def make_search(ctx: typer.Context, defaults: Mapping[str, Any] | None = None) -> tuple[Search, Evaluation]:
    """The `[search]` section: how betas are looked for, and how networks are judged. All of it goes into the run's
    configuration.
    """
    section = {**(defaults or {}), **sections(ctx).get("search", {})}
    known = {*_SEARCH, *_EVALUATION}
    for name in section:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean 'search.{close[0]}'?" if close else f"known are: {', '.join(sorted(known))}"
            raise UsageError(f"unknown setting 'search.{name}'; {hint}")
    try:
        search = Search(**{name: section[name] for name in _SEARCH if name in section})
        evaluation = Evaluation(**{name: section[name] for name in _EVALUATION if name in section})
    except (SearchError, TypeError) as error:
        raise UsageError(f"search: {error}") from None
    judged = {name: getattr(evaluation, name) for name in _EVALUATION}
    resolve_section(ctx, "search", {**asdict(search), **judged})
    return search, evaluation


def make_recipe(name: str, section: Mapping[str, Any], epochs: int | None = None) -> Recipe:
    """A named recipe with the changes of the `[tune]` section."""
    from lcprune.tune import recipe

    changes = dict(section) if epochs is None else {**section, "epochs": epochs}
    try:
        return recipe(name, **changes)
    except (TuneError, TypeError) as error:
        raise UsageError(str(error)) from None


def check_precision(device: torch.device, tuning: Recipe | None, evaluation: Evaluation | None = None) -> None:
    """Refuse a precision that was asked for and does not work on this machine, before an hour is spent."""
    try:
        if tuning is not None and tuning.precision == "bf16":
            bf16.settle("bf16", device, TuneError)
        if evaluation is not None:
            bf16.settle(evaluation.precision, device, SearchError)
    except TuneError as error:
        raise UsageError(f"tune: {error}") from None
    except SearchError as error:
        raise UsageError(f"search: {error}") from None


def make_options(ctx: typer.Context, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The sections of methods, e.g. `[amc]`, as settings of their own; wrong ones are refused at once."""
    found = {name: section for name, section in sections(ctx).items() if name not in SECTIONS}
    for name, section in found.items():
        if name not in methods:
            raise UsageError(f"settings for {name!r}, which is not among the methods {', '.join(methods)}")
        try:
            lcprune.methods.make(name, section)
        except (ConfigError, TypeError) as error:
            raise UsageError(f"{name}: {error}") from None
    return found
