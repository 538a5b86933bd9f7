"""What `train` and `tune` have in common: from what was typed to a training, and from that to a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

from lcprune.batches import check_weights
from lcprune.cli.command import UsageError, sections, start_run, wrong_usage
from lcprune.cli.prepare import check_precision, make_recipe
from lcprune.cli.show import listen, tell, write_run_report
from lcprune.cli.sources import describe_source, need_data, need_labels, open_network, pick_device, task_of
from lcprune.data import AnyData
from lcprune.runs import RunFolder
from lcprune.study import Network, judge
from lcprune.tune import FitResult, Recipe, fit


@dataclass(frozen=True, eq=False)
class Session:
    """A network that is about to be trained, and the options of the command."""

    ctx: typer.Context
    run: RunFolder
    network: Network
    dataset: AnyData
    recipe: Recipe
    device: torch.device
    teacher: nn.Module | None

    def fit(self, folder: Path) -> FitResult:
        """Train the network, in place, with its files in a folder of the run."""
        given = self.ctx.params
        result = fit(
            self.network.model,
            self.dataset,
            self.recipe,
            run_dir=folder,
            resume=bool(given["resume"]),
            teacher=self.teacher,
            progress=not given["quiet"],
            device=None if given["device"] == "auto" else self.device,
        )
        self.network.model.eval()
        return result

    def judge(self) -> dict[str, Any]:
        """Loss and score of the network as it is now, wherever it is."""
        return judge(self.network.model, self.dataset, next(self.network.model.parameters()).device)


@contextlib.contextmanager
def open_training(ctx: typer.Context, why: str) -> Iterator[Session]:
    """The training that the options ask for; everything is checked before its folder is made. Ends with the report."""
    given = ctx.params
    model, seed = given["model"], given["seed"]
    recipe = make_recipe(given["recipe"], {"seed": seed, **sections(ctx).get("tune", {})}, given["epochs"])
    listen(given["quiet"])
    device = pick_device(given["device"])
    check_precision(device, recipe)
    data, *judged = task_of(given)
    dataset = need_data(data, why, seed, *judged)
    need_labels(dataset, why)
    named = (model, given["weights"], given["num_classes"], given["input_shape"])
    network = open_network(*named, dataset, device, seed)
    with wrong_usage():
        check_weights(network.model)
    teacher = _teacher(network) if recipe.distill > 0 else None
    describe_source(ctx, network, dataset)
    with start_run(ctx, str(ctx.info_name), model) as run:
        network.describe(run)
        yield Session(ctx, run, network, dataset, recipe, device, teacher)
        if given["report"] and run.writes:
            write_run_report(run)
    if run.writes:
        tell(run, given["json_"])


def _teacher(network: Network) -> nn.Module:
    """The network before it was pruned, with its weights: what distillation imitates."""
    if network.plan is None or network.run is None or network.run.command not in ("prune", "pareto", "compare"):
        raise UsageError(
            "tune.distill needs the unpruned network as a teacher: tune a folder of `prune`, `pareto` or `compare`"
        )
    source = network.run.settings
    named = (str(source["model"]), *(source.get(name) for name in ("weights", "num_classes", "input_shape")))
    return open_network(*named, device=network.device).model
