"""`lcprune prune`, `plan` and `pareto`: smaller networks from a trained one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import show_plan
from lcprune.runs import PLAN


@o.also(o.STUDY)
def prune(
    ctx: typer.Context,
    model: o.Model,
    macs: o.Macs = None,
    params: o.Params = None,
    latency: o.Latency = None,
    batch: o.Batch = 1,
    backend: o.Backend = "eager",
    latency_table: o.LatencyTable = None,
    method: o.Method = "lcp",
    epochs: Annotated[int, o.run_option(min=0, help="Tune the result for so many epochs.")] = 0,
    seed: o.Seed = 0,
    dry_run: o.DryRun = False,
    asynchronous: o.Asynchronous = False,
) -> None:
    """Cut a trained network down to a limit, and tune it if asked to.

    Examples:

      lcprune prune runs/train --macs 50% --epochs 20

      lcprune prune resnet56 --weights resnet56.safetensors --data cifar10:PATH --macs 62.7M

      lcprune prune torchvision:resnet50 --weights pretrained --method naive --params 50%

      lcprune prune runs/train --latency 60% --batch 8 --backend onnx --multiple-of 8

      lcprune prune resnet56 --config run.toml --set search.iterations=100
    """
    from lcprune.cli.studies import open_study
    from lcprune.study import make_network

    limits = _limits(macs, params, latency, batch, backend, latency_table)
    if dry_run:
        show_plan(_chosen(ctx, method, limits, seed), ctx.params["json_"])
        return
    with open_study(ctx, [method], [] if macs is None else [macs], _why(ctx, method, epochs)) as study:
        study.keep(make_network(study, method, limits, seed))


@o.also(o.CHOICE, {name: o.FOLDER[name] for name in ("config", "set_", "json_", "quiet", "debug")})
def plan(
    ctx: typer.Context,
    model: o.Model,
    macs: o.Macs = None,
    params: o.Params = None,
    latency: o.Latency = None,
    batch: o.Batch = 1,
    backend: o.Backend = "eager",
    latency_table: o.LatencyTable = None,
    method: o.Method = "lcp",
    seed: o.Seed = 0,
    out: Annotated[Path | None, o.run_option(metavar="FILE", help="Keep the plan as JSON.")] = None,
    force: Annotated[bool, o.run_option("--force", help="Replace that file.")] = False,
) -> None:
    """Show what pruning would take from each layer; without a limit, what it took from a pruned network.

    Examples:

      lcprune plan torchvision:resnet50 --macs 50% --method naive

      lcprune plan runs/train --params 0.4M --out plan.json

      lcprune plan runs/prune
    """
    file = Path(model) / PLAN if Path(model).is_dir() else Path(model)
    if (macs, params, latency) == (None, None, None) and file.suffix == ".json" and file.is_file():
        found = lcprune.Plan.load(file)
    else:
        if out is not None and out.exists() and not force:
            raise UsageError(f"{out} exists already: replace it with --force, or name another file with --out")
        limits = _limits(macs, params, latency, batch, backend, latency_table)
        found = _chosen(ctx, method, limits, seed)
    if out is not None:
        found.save(out)
    show_plan(found, ctx.params["json_"])


def _chosen(ctx: typer.Context, method: str, limits: Mapping[str, Any], seed: int) -> lcprune.Plan:
    """What the options would keep; nothing is written."""
    from lcprune.cli.studies import open_study
    from lcprune.study import NetworkJob

    macs = [limits["macs"]] if "macs" in limits else []
    with open_study(ctx, [method], macs, _why(ctx, method), dry=True) as study:
        found: lcprune.Plan = study.choose(NetworkJob(method, limits, seed))[0].plan
    return found


def _limits(macs: Any, params: Any, latency: Any, batch: int, backend: str, table: str | None) -> dict[str, Any]:
    limits = {name: some for name, some in (("macs", macs), ("params", params)) if some is not None}
    limits |= _latency(latency, batch, backend, table)
    if not limits:
        raise UsageError("no limit: add one, e.g. --macs 50%, --params 0.4M or --latency 60%")
    return limits


def _why(ctx: typer.Context, method: str, epochs: int = 0) -> str | None:
    """What needs data; None if nothing does."""
    from lcprune.cli.prepare import check_names, needs_data

    metric = ctx.params["metric"]
    check_names([method], metric)
    wanted = lcprune.methods.get(method).needs_data or needs_data(metric) or epochs
    tuned = f" and epochs={epochs}" if epochs else ""
    return f"method {method!r} with metric {metric!r}{tuned}" if wanted else None


@o.also(o.STUDY)
def pareto(
    ctx: typer.Context,
    model: o.Model,
    macs: o.OptionalManyMacs = None,
    latency: o.ManyLatencies = None,
    batch: o.Batch = 1,
    backend: o.Backend = "eager",
    latency_table: o.LatencyTable = None,
    learn: Annotated[
        str,
        o.method_option(
            help="'sweep': all limits share one search; 'tightest': one search at the tightest limit; "
            "'each': a search per limit."
        ),
    ] = "sweep",
    methods: o.Methods = o.THREE_METHODS,
    epochs: Annotated[int, o.run_option(min=0, help="Tune every network for so many epochs.")] = 0,
    seed: o.Seed = 0,
    asynchronous: o.Asynchronous = False,
) -> None:
    """Make a frontier: one search, networks at many limits, with naive and uniform beside them.

    Examples:

      lcprune pareto runs/train --macs 20%,30%,50%,70% --epochs 20

      lcprune pareto resnet56 --weights resnet56.safetensors --data cifar10:PATH --learn each

      lcprune pareto runs/train --latency 80%,60%,40% --batch 1
    """
    from lcprune.cli.prepare import check_names
    from lcprune.cli.studies import open_study
    from lcprune.compensations import LEARN
    from lcprune.frontier import METHODS as FRONTIER_METHODS
    from lcprune.study import ORIGINAL, NetworkJob, run_jobs

    if learn not in LEARN:
        raise UsageError(f"--learn {learn}: choose one of {', '.join(map(repr, LEARN))}")
    check_names(methods, ctx.params["metric"])
    strange = [method for method in methods if method not in FRONTIER_METHODS]
    if strange:
        raise UsageError(f"--methods {', '.join(strange)}: a frontier takes only {', '.join(FRONTIER_METHODS)}")
    timed = _latency(latency, batch, backend, latency_table)
    if macs is None and latency is None:
        macs = o.FRONTIER
    with open_study(ctx, methods, macs or (), "a frontier") as study:
        folder = study.run.file("search")
        frontier = lcprune.pareto(
            study.graph,
            data=replace(study.evaluation, data=study.batches(seed)),
            macs=macs,
            methods=[lcprune.LcP(study.search) if method == "lcp" else method for method in methods],
            learn=learn,
            metric=study.metric,
            repair="none",  # the study repairs every network
            min_keep=study.min_keep,
            multiple_of=study.multiple_of,
            seed=seed,
            run=lcprune.Job(folder, folder.exists(), study.engine, networks=False),
            progress=study.progress,
            **timed,
        )
        jobs = [NetworkJob(ORIGINAL)]
        for number, point in enumerate(frontier.points):
            given = {"macs": macs, "latency": latency}
            limits = {name: some[number % len(some)] for name, some in given.items() if some is not None}
            spent = max((record.seconds for record in point.history), default=0.0)  # on this limit's own search
            jobs.append(NetworkJob(point.method, limits, seed, point.plan, point.history, spent))
        run_jobs(study, jobs)


def _latency(limits: Any, batch: int, backend: str, table: str | None) -> dict[str, Any]:
    """The limit on latency, if there is one; finds out before anything is done that a table cannot be used."""
    from lcprune.latency import Latency, Table

    if limits is None:
        ignored = {"--batch": batch != 1, "--backend": backend != "eager", "--latency-table": table is not None}
        for name in (name for name, given in ignored.items() if given):
            raise UsageError(f"{name} is for --latency: add a limit, e.g. --latency 60%")
        return {}
    if table is not None:
        try:
            Table.load(table)
        except lcprune.LatencyError as error:
            raise UsageError(str(error)) from error
    return {"latency": Latency(limits, batch, backend, table)}
