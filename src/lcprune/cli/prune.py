"""`lcprune prune`, `plan`, `pareto` and `compare`: smaller networks from a trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import UsageError, wrong_usage
from lcprune.cli.show import show_plan
from lcprune.files import atomic_write
from lcprune.limit import LATENCY, Limit
from lcprune.runs import PLAN, RunFolder

if TYPE_CHECKING:
    from lcprune.study import Study

METHODS = o.words("uniform,naive,lcp")
HALF_AND_QUARTER, FRONTIER = o.limits("macs")("50%,25%"), "20%,30%,50%,70%"
_MACS = "Multiply-adds: 50%,25% or 62.7M,30M."


@o.also(*o.TIMED, "asynchronous", *o.STUDY)
def prune(
    ctx: typer.Context,
    model: o.Model,
    macs: o.Macs = None,
    params: o.Params = None,
    latency: o.Latency = None,
    method: o.Method = "lcp",
    epochs: Annotated[int, o.run_option("Tune the result for so many epochs.", min=0)] = 0,
    seed: o.Seed = 0,
    dry_run: Annotated[
        bool, o.run_option("Show what would go, layer by layer; keep nothing.", None, "--dry-run")
    ] = False,
) -> None:
    """Cut a trained network down to a limit, and tune it if asked to.

    Examples:

      lcprune prune runs/train --macs 50% --epochs 20

      lcprune prune resnet56 --weights resnet56.safetensors --data cifar10:PATH --macs 62.7M

      lcprune prune torchvision:resnet50 --weights pretrained --method naive --params 50%

      lcprune prune runs/train --latency 60% --batch 8 --backend onnx --multiple-of 8

      lcprune prune resnet56 --config run.toml --set search.iterations=100
    """
    if dry_run:
        show_plan(_chosen(ctx), ctx.params["json_"])
        return
    from lcprune.cli.sessions import open_study
    from lcprune.study import make_network

    limits = _limits(ctx.params)
    with open_study(ctx, [method], [] if macs is None else [macs]) as study:
        study.keep(make_network(study, method, limits, seed))


@o.also(*o.TIMED, *o.CHOICE, "config", "set_", "json_", "quiet", "debug")
def plan(
    ctx: typer.Context,
    model: o.Model,
    macs: o.Macs = None,
    params: o.Params = None,
    latency: o.Latency = None,
    method: o.Method = "lcp",
    seed: o.Seed = 0,
    out: Annotated[Path | None, o.run_option("Keep the plan as JSON.", "FILE")] = None,
    force: Annotated[bool, o.run_option("Replace that file.", None, "--force")] = False,
) -> None:
    """Show what pruning would take from each layer, or, without a limit, what it took from a pruned network.

    Examples:

      lcprune plan torchvision:resnet50 --macs 50% --method naive

      lcprune plan runs/train --params 0.4M --out plan.json

      lcprune plan runs/prune
    """
    file = Path(model) / PLAN if Path(model).is_dir() else Path(model)
    unlimited = (macs, params, latency) == (None, None, None)
    if unlimited and file.suffix == ".json" and file.is_file():
        found = lcprune.Plan.load(file)
    elif unlimited and (several := sorted(Path(model).glob(f"networks/*/{PLAN}"))):
        raise UsageError(f"{model} has several plans: choose one of {', '.join(str(one.parent) for one in several)}")
    else:
        if out is not None and out.exists() and not force:
            raise UsageError(f"{out} exists already: replace it with --force, or name another file with --out")
        found = _chosen(ctx)
    if out is not None:
        found.save(out)
    show_plan(found, ctx.params["json_"])


def _chosen(ctx: typer.Context) -> lcprune.Plan:
    """What the options would keep; nothing is written."""
    from lcprune.cli.sessions import open_study
    from lcprune.study import NetworkJob

    given, limits = ctx.params, _limits(ctx.params)
    job = NetworkJob(given["method"], limits, given["seed"])
    with open_study(ctx, [job.method], [limits["macs"]] if "macs" in limits else [], dry=True) as study:
        found: lcprune.Plan = study.choose(job)[0].plan
    return found


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    limits = {name: given[name] for name in ("macs", "params") if given[name] is not None} | _timed(given)
    if not limits:
        raise UsageError("no limit: add one, e.g. --macs 50%, --params 0.4M or --latency 60%")
    return limits


def _timed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The limit on latency, if there is one; finds out before anything is done that a table cannot be used."""
    from lcprune.latency import Latency, Table

    if given["latency"] is None:
        for name in o.TIMED:
            if given[name] != o.SHARED[name].default:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is for --latency: add a limit, e.g. --latency 60%")
        return {}
    if given["latency_table"] is not None:
        with wrong_usage("", lcprune.LatencyError):
            Table.load(given["latency_table"])
    return {"latency": Latency(given["latency"], given["batch"], given["backend"], given["latency_table"])}


@o.also(*o.TIMED, "asynchronous", *o.STUDY)
def pareto(
    ctx: typer.Context,
    model: o.Model,
    macs: Annotated[
        o.Several | None, o.limit_option(f"{_MACS} [default: {FRONTIER}]", "SIZES", parser=o.limits("macs"))
    ] = None,
    latency: Annotated[
        o.Several | None, o.limit_option("Latency: 60%,40% or 3.5ms,2ms.", "TIMES", parser=o.limits(LATENCY))
    ] = None,
    learn: Annotated[
        str,
        o.method_option(
            "'sweep': all limits share one search; 'tightest': one search at the tightest limit; "
            "'each': a search per limit."
        ),
    ] = "sweep",
    methods: o.Methods = METHODS,
    epochs: Annotated[int, o.run_option("Tune every network for so many epochs.", min=0)] = 0,
    seed: o.Seed = 0,
) -> None:
    """Cut networks at many limits (a frontier) with one search, and naive and uniform ones beside them.

    Examples:

      lcprune pareto runs/train --macs 20%,30%,50%,70% --epochs 20

      lcprune pareto resnet56 --weights resnet56.safetensors --data cifar10:PATH --learn each

      lcprune pareto runs/train --latency 80%,60%,40% --batch 1
    """
    from lcprune.cli.sessions import open_study
    from lcprune.cli.sources import needs_data
    from lcprune.compensations import LEARN
    from lcprune.frontier import METHODS as FRONTIER_METHODS
    from lcprune.study import ORIGINAL, NetworkJob, run_jobs

    if learn not in LEARN:
        raise UsageError(f"--learn {learn}: choose one of {', '.join(map(repr, LEARN))}")
    needs_data(methods, ctx.params["metric"])  # refuses unknown names
    strange = [method for method in methods if method not in FRONTIER_METHODS]
    if strange:
        raise UsageError(f"--methods {', '.join(strange)}: a frontier takes only {', '.join(FRONTIER_METHODS)}")
    timed = _timed(ctx.params)
    if macs is None and latency is None:
        macs = o.limits("macs")(FRONTIER)
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


@o.also(*o.STUDY)
def compare(
    ctx: typer.Context,
    model: o.Model,
    macs: Annotated[o.Several, o.limit_option(_MACS, "SIZES", parser=o.limits("macs"))] = HALF_AND_QUARTER,
    methods: o.Methods = METHODS,
    epochs: o.Epochs = None,
    seeds: Annotated[int, o.run_option("How many trials, with seeds 0, 1, ...", min=1)] = 3,
) -> None:
    """Compare methods at the same limits: mean and standard deviation, as Markdown, CSV and LaTeX.

    Examples:

      lcprune compare runs/train --macs 50%,25% --seeds 3 --epochs 20

      lcprune compare resnet56 --weights resnet56.safetensors --data cifar10:PATH --methods naive,lcp
    """
    from lcprune.cli.sessions import open_study

    with open_study(ctx, methods, macs, "a comparison", whole=True) as study:
        grid(study, methods, macs, seeds)
        write_tables(study.run)


def grid(study: Study, methods: Sequence[str], macs: Sequence[Limit], seeds: int = 1) -> None:
    """Every method at every limit with every seed."""
    from lcprune.study import ORIGINAL, NetworkJob, run_jobs

    trials = [NetworkJob(how, {"macs": limit}, seed) for limit in macs for how in methods for seed in range(seeds)]
    run_jobs(study, [NetworkJob(ORIGINAL), *trials])


def write_tables(run: RunFolder) -> None:
    """The results as `tables/results.md`, `.csv` (every trial) and `.tex`."""
    from lcprune.report.tables import csv_text, latex, markdown, result_table

    rows = run.records("results")
    header, cells = result_table(rows)
    caption = f"{run.settings.get('model')} on {run.settings.get('data')}"
    texts = {"md": markdown(header, cells), "csv": csv_text(rows), "tex": latex(header, cells, caption)}
    for ending, text in texts.items():
        with atomic_write(run.file("tables", f"results.{ending}")) as path:
            path.write_text(text, encoding="utf-8")
