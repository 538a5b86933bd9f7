"""`lcprune train`: a network from scratch, by one of the paper's recipes."""

from __future__ import annotations

import typer

import lcprune
from lcprune.cli import options as o


@o.also(o.NETWORK, o.FOLDER)
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
    from lcprune.cli.training import open_training
    from lcprune.score import score_row
    from lcprune.study import ORIGINAL, cost_row, epoch_rows

    with open_training(ctx, "training") as session:
        run, network = session.run, session.network
        result = session.fit(run.path)
        if run.writes and not run.records("results"):
            graph = lcprune.trace(network.model, network.example)
            row = {"network": ORIGINAL, "method": ORIGINAL, "limit": None, "seed": seed, **cost_row(graph, graph)}
            score = session.dataset.compared_by
            run.add("training", *epoch_rows(ORIGINAL, result.history, score))
            run.add("results", {**row, **session.judge(), **score_row(score)})
