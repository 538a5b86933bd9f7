"""What the options name: a network, its data, a device; and the settings of search, tuning and methods.

`given` are a command's options by their names, or the settings of an earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer

import lcprune
from lcprune import bf16, data, study
from lcprune.batches import shape_of
from lcprune.cli.command import SECTIONS, UsageError, unknown_setting, wrong_usage
from lcprune.errors import MetricError, SearchError, TuneError, first_line
from lcprune.evaluate import Evaluation
from lcprune.runs import RunFolder
from lcprune.search import Search
from lcprune.tune import Recipe, recipe

if TYPE_CHECKING:
    from lcprune.data import AnyData
    from lcprune.study import Network

# What the section `[search]` can say: all but what is not a plain value.
_SEARCH = tuple(item.name for item in fields(Search))
_EVALUATION = tuple(item.name for item in fields(Evaluation) if item.name not in ("data", "loss_fn", "prepare"))


def open_network(
    given: Mapping[str, Any], dataset: AnyData | None = None, device: torch.device | str = "cpu", seed: int = 0
) -> Network:
    """The network that options name; one that cannot be opened is wrong usage."""
    weights, num_classes, shape = (given.get(name) for name in ("weights", "num_classes", "input_shape"))
    with wrong_usage():
        return study.open_network(str(given["model"]), weights, num_classes, shape, dataset, device, seed)


def open_data(given: Mapping[str, Any]) -> AnyData | None:
    """The data set that options name, if they do, with a loss and a score of the user's, if these are named."""
    name, loss, score = (given.get(key) for key in ("data", "loss", "score"))
    if name is None:
        if loss or score:
            raise UsageError("--loss and --score need data: name it with --data")
        return None
    with wrong_usage():
        return data.load(name, seed=given.get("seed", 0), loss=loss, score=score)


def open_both(
    given: dict[str, Any],
    device: torch.device,
    why: str | None,
    labels: str | None,
    seed: int = 0,
    network_first: bool = False,
) -> tuple[Network, AnyData | None]:
    """Network and data. What was found out about them goes into the options, for the run folder's configuration.

    Args:
        why: what needs data; None if nothing does.
        labels: what needs labels of data.
        network_first: a network that cannot be opened is said before data that are not there.
    """
    for name in (given["model"], given["weights"]):  # the data of the folder that the network comes from
        if name is not None and Path(name).is_dir():
            with wrong_usage():
                known = RunFolder.read(name).settings
            given.update({key: given[key] or known.get(key) for key in ("data", "loss", "score")})
    if network_first and why and given["data"] is None:
        open_network(given)
    dataset = open_data(given)
    if why and dataset is None:
        raise UsageError(f"{why} needs data: name it with --data, e.g. --data digits or --data cifar10:PATH")
    if labels and dataset is not None and not dataset.labelled:
        raise UsageError(f"{labels} needs labels, and {dataset.name} has none; pruning and repair need none")
    network = open_network(given, dataset, device, seed)
    if given["num_classes"] is None and dataset is not None:
        given["num_classes"] = dataset.num_classes
    shape = shape_of(network.example)
    plain = isinstance(shape, list) and all(isinstance(size, int) for size in shape)  # network.json has any
    if given["input_shape"] is None and plain:
        given["input_shape"] = tuple(shape)
    return network, dataset


def pick_device(name: str) -> torch.device:
    """The device that `--device` names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error).rstrip(".")
        raise UsageError(f"--device {name}: {reason}; --device auto takes what there is") from None
    return device


def needs_data(methods: Sequence[str], metric: str) -> bool:
    """Whether a method or the metric needs data; unknown ones are wrong usage."""
    with wrong_usage("", MetricError):
        for_methods = [lcprune.methods.get(method).needs_data for method in methods]
        # "auto" wants no data of a method that has none.
        for_metric = metric != "auto" and lcprune.metrics.get(metric).needs_data
        return any(for_methods) or for_metric


def make_search(ctx: typer.Context, defaults: Mapping[str, Any] | None = None) -> tuple[Search, Evaluation]:
    """The `[search]` section: how betas are looked for, and how networks are judged. All of it goes into the run's
    configuration.
    """
    section = {**(defaults or {}), **ctx.obj.get("search", {})}
    known = {*_SEARCH, *_EVALUATION}
    for name in section:
        if name not in known:
            raise UsageError(unknown_setting(name, known, "search."))
    with wrong_usage("search: ", SearchError, TypeError):
        search = Search(**{name: section[name] for name in _SEARCH if name in section})
        evaluation = Evaluation(**{name: section[name] for name in _EVALUATION if name in section})
    ctx.obj["search"] = {**asdict(search), **{name: getattr(evaluation, name) for name in _EVALUATION}}
    return search, evaluation


def make_recipe(name: str, section: Mapping[str, Any], epochs: int | None = None) -> Recipe:
    """A named recipe with the changes of the `[tune]` section."""
    changes = dict(section) if epochs is None else {**section, "epochs": epochs}
    with wrong_usage("", TuneError, TypeError):
        return recipe(name, **changes)


def check_precision(device: torch.device, tuning: Recipe | None, evaluation: Evaluation | None = None) -> None:
    """Refuse a precision that was asked for and does not work on this machine, before an hour is spent."""
    with wrong_usage("tune: ", TuneError):
        if tuning is not None and tuning.precision == "bf16":
            bf16.precision_on("bf16", device, TuneError)
    with wrong_usage("search: ", SearchError):
        if evaluation is not None:
            bf16.precision_on(evaluation.precision, device, SearchError)


def make_options(ctx: typer.Context, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The sections of methods, e.g. `[amc]`, as settings of their own; wrong ones are refused at once."""
    found = {name: section for name, section in ctx.obj.items() if name not in SECTIONS}
    for name, section in found.items():
        if name not in methods:
            raise UsageError(f"settings for {name!r}, which is not among the methods {', '.join(methods)}")
        with wrong_usage(f"{name}: ", TypeError):
            lcprune.methods.make(name, section)
    return found
