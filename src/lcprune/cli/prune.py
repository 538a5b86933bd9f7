"""`lcprune prune` and `lcprune pareto`: smaller networks from a trained one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import UsageError, sections, start_run
from lcprune.cli.finish import tell, write_run_report
from lcprune.cli.show import listen


def prune(
    ctx: typer.Context,
    model: o.Model,
    data: o.OptionalData = None,
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    macs: o.Macs = None,
    params: o.Params = None,
    latency: o.Latency = None,
    batch: o.Batch = 1,
    backend: o.Backend = "eager",
    latency_table: o.LatencyTable = None,
    method: o.Method = "lcp",
    metric: o.Metric = "l2",
    min_keep: o.MinKeep = 0.10,
    multiple_of: o.MultipleOf = None,
    epochs: Annotated[int, typer.Option(min=0, help="Tune the result for so many epochs.", rich_help_panel=o.RUN)] = 0,
    recipe: o.Recipe = "finetune",
    true_loss: o.TrueLoss = 0,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    asynchronous: o.Asynchronous = False,
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
    """Cut a trained network down to a limit, and tune it if asked to.

    Examples:

      lcprune prune runs/train --macs 50% --epochs 20

      lcprune prune resnet56 --weights resnet56.safetensors --data cifar10:PATH --macs 62.7M

      lcprune prune torchvision:resnet50 --weights pretrained --method naive --params 50%

      lcprune prune runs/train --latency 60% --batch 8 --backend onnx --multiple-of 8

      lcprune prune resnet56 --config run.toml --set search.iterations=100
    """
    from lcprune.cli.machines import open_engine
    from lcprune.cli.prepare import check_names, check_precision, make_options, make_recipe, make_search
    from lcprune.cli.sources import describe_source, folder_setting, open_data, open_network, pick_device
    from lcprune.latency import Latency
    from lcprune.study import Study, check_reachable, make_network, record_metric_error, trace_network

    _check_table(latency_table, latency)
    timed = None if latency is None else Latency(latency, batch, backend, latency_table)
    limits = _limits(macs=macs, params=params, latency=timed)
    check_names([method], metric)
    (search, evaluation), tuning = make_search(ctx), make_recipe(recipe, _tune(ctx), epochs)
    options = make_options(ctx, [method])
    listen(quiet)
    where = pick_device(device)
    if engine == "local":  # workers elsewhere find out for themselves
        check_precision(where, tuning if epochs else None, evaluation)
    data = data or folder_setting(model, "data")
    dataset = open_data(data, seed) if data else None
    needs_data = lcprune.methods.get(method).needs_data or lcprune.metrics.get(metric).needs_data or epochs
    if dataset is None and needs_data:
        open_network(model, weights, num_classes, input_shape)  # a wrong name is the first thing to hear of
        raise UsageError(
            f"method {method!r} with metric {metric!r} and epochs={epochs} needs data: name it with --data, "
            "e.g. --data digits; without data there are --method naive and --method uniform"
        )
    network = open_network(model, weights, num_classes, input_shape, dataset, where)
    describe_source(ctx, network, dataset)
    graph = trace_network(network)
    check_reachable(graph, [] if macs is None else [macs], params, min_keep, multiple_of)
    with open_engine(ctx, search) as (machines, search), start_run(ctx, "prune", model) as run:
        network.describe(run, pruned=True)
        study = Study(
            run,
            network,
            dataset,
            tuning if epochs else None,
            search,
            metric,
            min_keep,
            multiple_of,
            not quiet,
            options,
            machines,
            evaluation,
        )
        study.graph = graph
        study.keep(make_network(study, method, limits, seed))
        if true_loss and dataset is not None:
            record_metric_error(study, [metric], true_loss, seed)
        if report:
            write_run_report(run)
    tell(run, json_)


def pareto(
    ctx: typer.Context,
    model: o.Model,
    data: o.OptionalData = None,
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    macs: o.OptionalManyMacs = None,
    latency: o.ManyLatencies = None,
    batch: o.Batch = 1,
    backend: o.Backend = "eager",
    latency_table: o.LatencyTable = None,
    learn: Annotated[
        str,
        typer.Option(
            help="'sweep': one search shared by all limits; 'tightest': learned at the tightest, used for all; "
            "'each': a search per limit.",
            rich_help_panel=o.SEARCH,
        ),
    ] = "sweep",
    methods: o.Methods = o.THREE_METHODS,
    metric: o.Metric = "l2",
    min_keep: o.MinKeep = 0.10,
    multiple_of: o.MultipleOf = None,
    epochs: Annotated[
        int, typer.Option(min=0, help="Tune every network for so many epochs.", rich_help_panel=o.RUN)
    ] = 0,
    recipe: o.Recipe = "finetune",
    seed: o.Seed = 0,
    device: o.Device = "auto",
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    asynchronous: o.Asynchronous = False,
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
    """Make a frontier: one search, networks at many limits, with naive and uniform beside them.

    Examples:

      lcprune pareto runs/train --macs 20%,30%,50%,70% --epochs 20

      lcprune pareto resnet56 --weights resnet56.safetensors --data cifar10:PATH --learn each

      lcprune pareto runs/train --latency 80%,60%,40% --batch 1
    """
    from lcprune.cli.machines import open_engine
    from lcprune.cli.prepare import check_names, check_precision, make_recipe, make_search
    from lcprune.cli.sources import describe_source, folder_setting, need_data, open_network, pick_device
    from lcprune.compensations import LEARN
    from lcprune.frontier import METHODS as FRONTIER_METHODS
    from lcprune.latency import Latency
    from lcprune.study import ORIGINAL, NetworkJob, Study, check_reachable, run_jobs, trace_network

    check_names(methods, metric)
    _check_table(latency_table, latency)
    timed = None if latency is None else Latency(latency, batch, backend, latency_table)
    if learn not in LEARN:
        raise UsageError(f"--learn {learn}: choose one of {', '.join(map(repr, LEARN))}")
    strange = [method for method in methods if method not in FRONTIER_METHODS]
    if strange:
        raise UsageError(f"a frontier has the methods {', '.join(FRONTIER_METHODS)}, not {', '.join(strange)}")
    (search, evaluation), tuning = make_search(ctx), make_recipe(recipe, _tune(ctx), epochs)
    listen(quiet)
    where = pick_device(device)
    if engine == "local":  # workers elsewhere find out for themselves
        check_precision(where, tuning if epochs else None, evaluation)
    dataset = need_data(data or folder_setting(model, "data"), "a frontier", seed)
    network = open_network(model, weights, num_classes, input_shape, dataset, where)
    describe_source(ctx, network, dataset)
    graph = trace_network(network)
    if macs is None and latency is None:
        macs = o.FRONTIER
    check_reachable(graph, macs or (), None, min_keep, multiple_of)
    with open_engine(ctx, search) as (machines, search), start_run(ctx, "pareto", model) as run:
        study = Study(
            run,
            network,
            dataset,
            tuning if epochs else None,
            search,
            metric,
            min_keep,
            multiple_of,
            not quiet,
            engine=machines,
            evaluation=evaluation,
        )
        study.graph = graph
        frontier = lcprune.pareto(
            graph,
            data=replace(evaluation, data=study.batches(seed)),
            macs=macs,
            latency=timed,
            methods=[lcprune.LcP(search) if method == "lcp" else method for method in methods],
            learn=learn,
            metric=metric,
            min_keep=min_keep,
            multiple_of=multiple_of,
            seed=seed,
            run=lcprune.Job(run.file("search"), run.file("search").exists(), machines),
            progress=not quiet,
        )
        jobs = [NetworkJob(ORIGINAL)]
        for number, point in enumerate(frontier.points):
            given = {"macs": macs, "latency": latency}
            limits = {name: some[number % len(some)] for name, some in given.items() if some is not None}
            spent = max((record.seconds for record in point.history), default=0.0)  # on this limit's own search
            jobs.append(NetworkJob(point.method, limits, seed, point.plan, point.history, spent))
        run_jobs(study, jobs)
        if report:
            write_run_report(run)
    tell(run, json_)


def _limits(**given: Any) -> dict[str, Any]:
    limits = {name: value for name, value in given.items() if value is not None}
    if not limits:
        raise UsageError("no limit: say what the network may cost, e.g. --macs 50%, --params 0.4M or --latency 60%")
    return limits


def _check_table(table: str | None, latency: Any) -> None:
    """Find out before anything is done that a table cannot be used."""
    from lcprune.latency import Table

    if table is None:
        return
    if latency is None:
        raise UsageError("--latency-table is for --latency: say what the network may take, e.g. --latency 60%")
    try:
        Table.load(table)
    except lcprune.LatencyError as error:
        raise UsageError(str(error)) from error


def _tune(ctx: typer.Context) -> dict[str, Any]:
    return sections(ctx).get("tune", {})
