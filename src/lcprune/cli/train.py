"""`lcprune train`, `tune` and `evaluate`: networks from scratch, after pruning, and what they are worth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import print_json, print_table

if TYPE_CHECKING:
    from lcprune.runs import RunFolder
    from lcprune.study import Network


@o.also(*o.NETWORK, *o.FOLDER)
def train(
    ctx: typer.Context,
    model: o.Model,
    epochs: o.Epochs = None,
    recipe: o.Recipe = "baseline",
    seed: o.Seed = 0,
) -> None:
    """Train a network.

    Examples:

      lcprune train digits_resnet --data digits --epochs 20 --out runs/train

      lcprune train resnet56 --data cifar10:PATH

      torchrun --nproc-per-node 4 -m lcprune train resnet56 --data cifar10:PATH --out runs/train
    """
    from lcprune.cli.sessions import open_training
    from lcprune.score import score_row
    from lcprune.study import ORIGINAL, cost_row, epoch_rows

    with open_training(ctx, "training") as training:
        run, network, score = training.run, training.network, training.dataset.compared_by
        history = training.fit(run.path)
        if run.writes and not run.records("results"):
            graph = lcprune.trace(network.model, network.example)
            row = {"network": ORIGINAL, "method": ORIGINAL, "limit": None, "seed": seed, **cost_row(graph, graph)}
            run.add("training", *epoch_rows(ORIGINAL, history, score))
            run.add("results", {**row, **training.judge(), **score_row(score)})


@o.also(*o.NETWORK, *o.FOLDER)
def tune(
    ctx: typer.Context,
    model: o.Model,
    epochs: o.Epochs = None,
    recipe: o.Recipe = "finetune",
    seed: o.Seed = 0,
) -> None:
    """Fine-tune a network, usually the one that `lcprune prune` wrote.

    Examples:

      lcprune tune runs/prune --epochs 30

      lcprune tune runs/prune --set tune.distill=0.5 --out runs/tuned
    """
    from lcprune.cli.sessions import open_training
    from lcprune.runs import WEIGHTS
    from lcprune.score import score_row
    from lcprune.study import epoch_rows
    from lcprune.tune.checkpoint import save_weights

    with open_training(ctx, "tuning") as training:
        run, network, score = training.run, training.network, training.dataset.compared_by
        graph = lcprune.trace(network.model, network.example)
        before = {f"{name}_before": value for name, value in training.judge().items()}
        history = training.fit(run.file("tuning"))
        if run.writes and not run.records("results"):
            costs = {"seed": seed, "macs": int(graph.macs), "params": int(graph.params)}
            name = _record(run, network, before, {**costs, **training.judge(), **score_row(score)})
            run.add("training", *epoch_rows(name, history, score))
            if network.plan is not None:
                lcprune.save(run.path, network.model, network.plan)
            else:
                save_weights(run.file(WEIGHTS), network.model)


def _record(run: RunFolder, network: Network, before: dict[str, Any], tuned: dict[str, Any]) -> str:
    """Carry the pruned run's records over, with the row of the network tuned; what that is called.

    What the network had as it was cut is in its own row; `before`, what it had just now, stands in where it has none.
    """
    from lcprune.study import ORIGINAL

    rows = network.run.records("results") if network.run is not None else []
    pruned = [row for row in rows if row["method"] != ORIGINAL]
    known = pruned[0] if len(pruned) == 1 else {"network": "tuned", "method": "tuned", "limit": None}
    run.add("results", *[row for row in rows if row["method"] == ORIGINAL], {**before, **known, **tuned})
    if len(pruned) == 1 and network.run is not None:
        for kind in ("schedule", "search", "metric"):
            if carried := network.run.records(kind):
                run.add(kind, *carried)
    return str(known["network"])


@o.also(*o.TASK, *o.SOURCE, "seed", "device", "json_", "debug")
def evaluate(
    ctx: typer.Context,
    model: o.Model,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
) -> None:
    """Loss and score of a network; the score is accuracy unless you name another.

    Examples:

      lcprune evaluate runs/prune

      lcprune evaluate resnet56 --weights resnet56.safetensors --data cifar10:PATH --split val
    """
    from lcprune.cli.sources import open_both, pick_device
    from lcprune.tune import evaluate as measure

    given = ctx.params
    if split not in ("train", "val", "test"):
        raise UsageError(f"--split {split}: choose train, val or test")
    device = pick_device(given["device"])
    network, dataset = open_both(given, device, "evaluating", "evaluating")
    assert dataset is not None
    found, shown = measure(network.model, dataset, split, device=device), dataset.compared_by
    images = len(dataset.split(split))
    if given["json_"]:
        value = found.score if math.isfinite(found.score) else None
        print_json({"model": model, "split": split, "images": images, "loss": found.loss, shown.name: value})
        return
    columns = {"network": model, "split": split, "images": str(images), "loss": f"{found.loss:.4f}"}
    if shown.name != "loss":
        columns[shown.title] = shown.number(found.score)
    print_table("", list(columns), [list(columns.values())])
