"""What the options name: a network, its data, a device, the folder of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer

from lcprune import study
from lcprune.batches import shape_of
from lcprune.cli.command import UsageError, wrong_usage
from lcprune.errors import first_line
from lcprune.runs import RunFolder

if TYPE_CHECKING:
    from lcprune.data import AnyData
    from lcprune.study import Network


def open_network(*arguments: Any, **options: Any) -> Network:
    """As `lcprune.study.open_network`; a network that cannot be opened is wrong usage."""
    with wrong_usage():
        return study.open_network(*arguments, **options)


def open_data(name: str | None, seed: int = 0, loss: str | None = None, score: str | None = None) -> AnyData | None:
    """The data set called `name`, if one is; with a loss and a score of the user's, if these are named."""
    from lcprune import data

    if name is None:
        if loss or score:
            raise UsageError("--loss and --score need data: name it with --data")
        return None
    with wrong_usage():
        return data.load(name, seed=seed, loss=loss, score=score)


def need_data(name: str | None, why: str, seed: int = 0, loss: str | None = None, score: str | None = None) -> AnyData:
    """The data set called `name`; usage error if there is none."""
    dataset = open_data(name, seed, loss, score)
    if dataset is None:
        raise UsageError(f"{why} needs data: name it with --data, e.g. --data digits or --data cifar10:PATH")
    return dataset


def need_labels(dataset: AnyData, why: str) -> None:
    """Usage error if the images have none."""
    if not dataset.labelled:
        raise UsageError(f"{why} needs labels, and {dataset.name} has none; pruning and repair need none")


def describe_source(ctx: typer.Context, network: Network, dataset: AnyData | None = None) -> None:
    """Write into the options what was found out, so that the run folder's configuration says it all."""
    params = ctx.params
    for name in ("data", "loss", "score"):
        if network.run is not None and params.get(name) is None:
            params[name] = network.run.settings.get(name)
    if "num_classes" in params and params["num_classes"] is None and dataset is not None:
        params["num_classes"] = dataset.num_classes
    shape = shape_of(network.example)
    plain = isinstance(shape, list) and all(isinstance(size, int) for size in shape)  # network.json has any
    if "input_shape" in params and params["input_shape"] is None and plain:
        params["input_shape"] = tuple(shape)


def task_of(given: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Data, loss and score that were typed, or those of the folder that the network or its weights come from."""
    data, loss, score = (given[name] for name in ("data", "loss", "score"))
    for name in (given["model"], given["weights"]):
        if name is not None and Path(name).is_dir():
            with wrong_usage():
                known = RunFolder.read(name).settings
            data, loss, score = data or known.get("data"), loss or known.get("loss"), score or known.get("score")
    return data, loss, score


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
