"""What `prune`, `pareto` and `compare` have in common: from what was typed to a study, and from that to a report."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace

import typer

from lcprune.cli.command import sections, start_run
from lcprune.cli.machines import open_engine
from lcprune.cli.prepare import check_names, check_precision, make_options, make_recipe, make_search
from lcprune.cli.show import listen, tell, write_run_report
from lcprune.cli.sources import (
    describe_source,
    need_data,
    need_labels,
    open_data,
    open_network,
    pick_device,
    task_of,
)
from lcprune.engine import LocalEngine
from lcprune.evaluate import DIVERGENCE
from lcprune.limit import Limit
from lcprune.repairs import NONE, check_how
from lcprune.runs import RunFolder
from lcprune.study import Study, check_reachable, gives_scores, trace_network


@contextlib.contextmanager
def open_study(
    ctx: typer.Context,
    methods: Sequence[str],
    macs: Sequence[Limit],
    why: str | None,
    whole: bool = False,
    dry: bool = False,
) -> Iterator[Study]:
    """The study that the options ask for; everything is checked before its folder is made. Ends with the report.

    Args:
        why: what needs data; None if nothing does.
        whole: whole searches are shared out to machines, not the candidates of one.
        dry: nothing is kept, and nothing said in the end.
    """
    given, command = ctx.params, str(ctx.info_name)
    model, seed, min_keep, multiple_of = given["model"], given.get("seed", 0), given["min_keep"], given["multiple_of"]
    named = (model, given["weights"], given["num_classes"], given["input_shape"])
    repair = given.get("repair", NONE)
    check_names(methods, given["metric"])
    check_how(repair)
    (search, evaluation), options = make_search(ctx), make_options(ctx, methods)
    recipe = make_recipe(given.get("recipe", "finetune"), sections(ctx).get("tune", {}), given.get("epochs", 0))
    tuning = recipe if recipe.epochs else None
    listen(given["quiet"])
    device = pick_device(given["device"])
    if given.get("engine", "local") == "local":  # workers elsewhere find out for themselves
        check_precision(device, tuning, evaluation)
    data, *judged = task_of(given)
    if why and data is None:
        open_network(*named)  # a wrong name is the first thing to hear of
    dataset = need_data(data, why, seed, *judged) if why else open_data(data, seed, *judged)
    if dataset is not None and dataset.loss_fn is not None:
        evaluation = replace(evaluation, loss_fn=dataset.loss_fn)
    if tuning is not None and dataset is not None:
        need_labels(dataset, f"--epochs {tuning.epochs}")
    network = open_network(*named, dataset, device)
    if dataset is not None and not dataset.labelled and dataset.classifies and gives_scores(network, dataset):
        evaluation = replace(evaluation, loss_fn=DIVERGENCE)
    describe_source(ctx, network, dataset)
    graph = trace_network(network, given["ignore"] or ())
    check_reachable(graph, macs, given.get("params"), min_keep, multiple_of)
    engines = contextlib.nullcontext((LocalEngine(), search)) if dry else open_engine(ctx, search, whole)
    with engines as (engine, search), _nowhere() if dry else start_run(ctx, command, model) as run:
        yield Study(
            run,
            network,
            graph,
            dataset,
            tuning,
            search=search,
            metric=given["metric"],
            min_keep=min_keep,
            multiple_of=multiple_of,
            progress=not given["quiet"],
            options=options,
            engine=engine,
            evaluation=evaluation,
            repair=repair,
        )
        if not dry and given["report"]:
            write_run_report(run)
    if not dry:
        tell(run, given["json_"])


@contextlib.contextmanager
def _nowhere() -> Iterator[RunFolder]:
    with tempfile.TemporaryDirectory(prefix="lcprune-") as folder:
        yield RunFolder(folder, "plan", {})
