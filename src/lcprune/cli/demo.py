"""`lcprune demo`: the whole way in a few minutes, offline: train, prune in three ways, tune, report."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from lcprune.cli import options as o
from lcprune.cli.prune import HALF_AND_QUARTER, METHODS, grid, write_tables
from lcprune.cli.show import listen, open_run

if TYPE_CHECKING:
    import torch

    from lcprune.runs import RunFolder
    from lcprune.study import Network

logger = logging.getLogger("lcprune")

MODEL, DATA = "digits_resnet", "digits"
# Small enough for two cores and three minutes; the paper's values are the library's defaults.
SEARCH = {"pool": 40, "iterations": 120, "images": 1000}
TRAINING = {"epochs": 30, "lr": 0.1, "batch_size": 64, "lr_decay": "cosine"}
TUNING = {"epochs": 10, "lr": 0.02, "batch_size": 64, "lr_decay": "cosine"}
LATENCY: dict[str, Any] = {"batch_sizes": (1, 16, 64), "rounds": 9}


@o.also("device", *o.FOLDER, device="cpu", out="runs/demo")
def demo(ctx: typer.Context, seed: o.Seed = 0) -> None:
    """Train a small network on digits, prune it to 50 % and 25 % in three ways, tune, compare, report.

    Examples:

      lcprune demo

      lcprune demo --out runs/again --seed 1
    """
    from lcprune import data
    from lcprune.cli.sources import check_precision, make_recipe, make_search, pick_device
    from lcprune.setup import TUNED
    from lcprune.study import Study, record_latency, record_metric_error, trace_network

    progress = not ctx.params["quiet"]
    listen(not progress)
    changes = {**TUNING, **ctx.obj.get("tune", {})}
    (search, evaluation), tuning = make_search(ctx, SEARCH), make_recipe("finetune", changes)
    ctx.obj["tune"] = changes
    device = pick_device(ctx.params["device"])
    check_precision(device, tuning, evaluation)
    dataset = data.load(DATA, seed=seed)
    title = "Digits: a small residual network, pruned in three ways"
    with _one_thread(), open_run(ctx, MODEL, "Digits, test images", title) as run:
        network = _trained(run, dataset, device, seed, progress)
        graph = trace_network(network)
        study = Study(run, network, graph, dataset, tuning, search, TUNED, progress=progress, evaluation=evaluation)
        grid(study, METHODS, HALF_AND_QUARTER)
        logger.info("measuring latency")
        record_latency(study, **LATENCY)
        logger.info("measuring how the loss moves without single units")
        record_metric_error(study, ["l1", "l2", "taylor"], 4, seed)
        write_tables(run)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Images of 8x8 gain nothing from a second thread, and lose much to it on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trained(run: RunFolder, dataset: Any, device: torch.device, seed: int, progress: bool) -> Network:
    import torch

    from lcprune import models
    from lcprune.cli.sources import make_recipe
    from lcprune.study import ORIGINAL, Network, epoch_rows
    from lcprune.tune import fit

    torch.manual_seed(seed)
    model = models.build(MODEL, num_classes=dataset.num_classes).to(device)
    recipe = make_recipe("baseline", {**TRAINING, "seed": seed})
    logger.info("training %s on %s for %d epochs", MODEL, DATA, recipe.epochs)
    folder = run.file("training")
    result = fit(model, dataset, recipe, run_dir=folder, resume=True, progress=progress, device=device)
    if not any(row["network"] == ORIGINAL for row in run.records("training")):
        run.add("training", *epoch_rows(ORIGINAL, result.history))
    example = models.example_input(MODEL, shape=dataset.input_shape).to(device)
    return Network(MODEL, model.eval(), example)
