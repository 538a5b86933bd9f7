"""`lcprune train`: a network from scratch, by one of the paper's recipes."""

from __future__ import annotations

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import sections, start_run
from lcprune.cli.finish import tell, write_run_report
from lcprune.cli.show import listen


def train(
    ctx: typer.Context,
    model: o.Model,
    data: o.Data = None,
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    epochs: o.Epochs = None,
    recipe: o.Recipe = "baseline",
    seed: o.Seed = 0,
    device: o.Device = "auto",
    out: o.Out = None,
    resume: o.Resume = False,
    force: o.Force = False,
    config: o.Config = None,
    set_: o.Set = None,
    report: o.Report = True,
    json_: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Train a network.

    Examples:

      lcprune train digits_resnet --data digits --epochs 20 --out runs/train

      lcprune train resnet56 --data cifar10:PATH

      torchrun --nproc-per-node 4 -m lcprune train resnet56 --data cifar10:PATH --out runs/train
    """
    from lcprune.cli.prepare import check_precision, make_recipe
    from lcprune.cli.sources import describe_source, need_data, open_network, pick_device
    from lcprune.study import ORIGINAL, cost_row, epoch_rows, judge
    from lcprune.tune import fit

    tuning = make_recipe(recipe, {"seed": seed, **sections(ctx).get("tune", {})}, epochs)
    listen(quiet)
    where = pick_device(device)
    check_precision(where, tuning)
    dataset = need_data(data, "training", seed)
    network = open_network(model, weights, num_classes, input_shape, dataset, where, seed)
    describe_source(ctx, network, dataset)
    with start_run(ctx, "train", model) as run:
        network.describe(run)
        result = fit(
            network.model,
            dataset,
            tuning,
            run_dir=run.path,
            resume=bool(resume),
            progress=not quiet,
            device=where if device != "auto" else None,
        )
        if run.writes and not run.records("results"):
            network.model.eval()
            graph = lcprune.trace(network.model, network.example.to(next(network.model.parameters()).device))
            loss, accuracy = judge(network.model, dataset, next(network.model.parameters()).device)
            run.add("training", *epoch_rows(ORIGINAL, result.history))
            run.add(
                "results",
                {
                    "network": ORIGINAL,
                    "method": ORIGINAL,
                    "limit": None,
                    "seed": seed,
                    **cost_row(graph, graph),
                    "loss": loss,
                    "accuracy": accuracy,
                },
            )
        if report and run.writes:
            write_run_report(run)
    if run.writes:
        tell(run, json_)
