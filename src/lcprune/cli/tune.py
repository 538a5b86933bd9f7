"""`lcprune tune` and `lcprune evaluate`: what a pruned network can get back, and what it is worth."""

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


@o.also(o.NETWORK, o.FOLDER)
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
    from lcprune.cli.training import open_training
    from lcprune.runs import WEIGHTS
    from lcprune.score import score_row
    from lcprune.study import epoch_rows
    from lcprune.tune.checkpoint import save_weights

    with open_training(ctx, "tuning") as session:
        run, network = session.run, session.network
        graph = lcprune.trace(network.model, network.example)
        before = session.judge()
        result = session.fit(run.file("tuning"))
        if run.writes and not run.records("results"):
            score = session.dataset.compared_by
            _record(run, network, graph, before, {**session.judge(), **score_row(score)}, seed)
            run.add("training", *epoch_rows(run.records("results")[-1]["network"], result.history, score))
            if network.plan is not None:
                lcprune.save(run.path, network.model, network.plan)
            else:
                save_weights(run.file(WEIGHTS), network.model)


def evaluate(
    model: o.Model,
    data: o.Data = None,
    loss: o.Loss = None,
    score: o.Score = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json_: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Loss and score of a network; the score is accuracy unless you name another.

    Examples:

      lcprune evaluate runs/prune

      lcprune evaluate resnet56 --weights resnet56.safetensors --data cifar10:PATH --split val
    """
    from lcprune.cli.sources import need_data, need_labels, open_network, pick_device, task_of
    from lcprune.tune import evaluate as measure

    if split not in ("train", "val", "test"):
        raise UsageError(f"--split {split}: choose train, val or test")
    where = pick_device(device)
    given = {"data": data, "loss": loss, "score": score, "model": model, "weights": weights}
    named, *judged = task_of(given)
    dataset = need_data(named, "evaluating", seed, *judged)
    need_labels(dataset, "evaluating")
    network = open_network(model, weights, num_classes, input_shape, dataset, where)
    found, shown = measure(network.model, dataset, split, device=where), dataset.compared_by
    images = len(dataset.split(split))
    if json_:
        value = found.score if math.isfinite(found.score) else None
        print_json({"model": model, "split": split, "images": images, "loss": found.loss, shown.name: value})
        return
    columns = {"network": model, "split": split, "images": str(images), "loss": f"{found.loss:.4f}"}
    if shown.name != "loss":
        columns[shown.title] = shown.number(found.score)
    print_table("", list(columns), [list(columns.values())])


def _record(
    run: RunFolder,
    network: Network,
    graph: lcprune.ChannelGraph,
    before: dict[str, Any],
    after: dict[str, Any],
    seed: int,
) -> None:
    """Carry the pruned run's records over, with the row of the network tuned."""
    from lcprune.study import ORIGINAL

    rows = network.run.records("results") if network.run is not None else []
    pruned = [row for row in rows if row["method"] != ORIGINAL]
    row: dict[str, Any] = (
        dict(pruned[-1]) if len(pruned) == 1 else {"network": "tuned", "method": "tuned", "limit": None}
    )
    row.update(seed=seed, macs=int(graph.macs), params=int(graph.params))
    row.update({f"{name}_before": value for name, value in before.items()} | after)
    run.add("results", *[r for r in rows if r["method"] == ORIGINAL], row)
    if len(pruned) == 1 and network.run is not None:
        for kind in ("schedule", "search", "metric"):
            carried = network.run.records(kind)
            if carried:
                run.add(kind, *carried)
