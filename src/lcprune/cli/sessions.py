"""From what was typed to a study or a training, checked before its folder is made; and from that to a report."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer
from torch import nn

from lcprune.batches import check_weights
from lcprune.cli.command import UsageError, wrong_usage
from lcprune.cli.show import listen, open_run
from lcprune.cli.sources import (
    check_precision,
    make_options,
    make_recipe,
    make_search,
    needs_data,
    open_both,
    open_network,
    pick_device,
)
from lcprune.data import AnyData
from lcprune.engine import Engine, LocalEngine, RayEngine, make_engine
from lcprune.evaluate import DIVERGENCE
from lcprune.limit import Limit
from lcprune.repairs import NONE, check_how
from lcprune.runs import RunFolder
from lcprune.search import Search
from lcprune.setup import AUTO, TUNED
from lcprune.study import Network, Study, check_reachable, gives_scores, judge, trace_network
from lcprune.tune import fit


@contextlib.contextmanager
def open_study(
    ctx: typer.Context,
    methods: Sequence[str],
    macs: Sequence[Limit],
    why: str | None = None,
    whole: bool = False,
    dry: bool = False,
) -> Iterator[Study]:
    """The study that the options ask for.

    Args:
        why: what needs data; None if only the methods, the metric or tuning may.
        whole: whole searches are shared out to machines, not the candidates of one.
        dry: nothing is tuned or kept, and nothing said in the end.
    """
    given, metric, repair = ctx.params, ctx.params["metric"], ctx.params.get("repair", NONE)
    epochs = 0 if dry else given.get("epochs", 0)
    if (needs_data(methods, metric) or epochs) and why is None:
        tuned = f" and epochs={epochs}" if epochs else ""
        why = f"method {methods[0]!r} with metric {metric!r}{tuned}"
    check_how(repair)
    (search, evaluation), options = make_search(ctx), make_options(ctx, methods)
    recipe = make_recipe(given.get("recipe", "finetune"), ctx.obj.get("tune", {}), given.get("epochs", 0))
    tuning = recipe if recipe.epochs and not dry else None
    listen(given["quiet"])
    device = pick_device(given["device"])
    if given.get("engine", "local") == "local":  # workers elsewhere find out for themselves
        check_precision(device, tuning, evaluation)
    labels = f"--epochs {recipe.epochs}" if tuning else None
    network, dataset = open_both(given, device, why, labels, network_first=True)
    if dataset is not None and dataset.loss_fn is not None:
        evaluation = replace(evaluation, loss_fn=dataset.loss_fn)
    if dataset is not None and not dataset.labelled and dataset.classifies and gives_scores(network, dataset):
        evaluation = replace(evaluation, loss_fn=DIVERGENCE)
    graph = trace_network(network, given["ignore"] or ())
    check_reachable(graph, macs, given.get("params"), given["min_keep"], given["multiple_of"])
    engines = contextlib.nullcontext((LocalEngine(), search)) if dry else _open_engine(ctx, search, whole)
    with engines as (engine, search), _nowhere() if dry else open_run(ctx, given["model"]) as run:
        yield Study(
            run,
            network,
            graph,
            dataset,
            tuning,
            search=search,
            metric=TUNED if metric == AUTO and recipe.epochs else metric,
            min_keep=given["min_keep"],
            multiple_of=given["multiple_of"],
            progress=not given["quiet"],
            options=options,
            engine=engine,
            evaluation=evaluation,
            repair=repair,
        )


@contextlib.contextmanager
def _nowhere() -> Iterator[RunFolder]:
    with tempfile.TemporaryDirectory(prefix="lcprune-") as folder:
        yield RunFolder(folder, "plan", {})


@contextlib.contextmanager
def _open_engine(ctx: typer.Context, search: Search, whole: bool) -> Iterator[tuple[Engine, Search]]:
    """The engine that the options ask for, and the search as it is done there.

    The number of candidates asked together goes into the run's configuration, so that `--resume` goes on with the same
    search even if other machines, or another number of them, do the work.
    """
    given = ctx.params
    name, address, workers = given["engine"], given["address"], given["workers"]
    sources = [ctx.get_parameter_source(option) for option in ("address", "workers")]
    if name == "local" and not any(source is not None and source.name == "COMMANDLINE" for source in sources):
        address = workers = None  # the folder of --resume was made by more machines
    with wrong_usage():
        engine = make_engine(name, address, workers)
    if isinstance(engine, RayEngine):
        engine.gpus = given["device"] != "cpu"
    elif given.get("asynchronous"):
        raise UsageError("--asynchronous needs --engine ray: one worker has nobody to wait for")
    with engine:
        search = replace(search, asynchronous=search.asynchronous or bool(given.get("asynchronous")))
        if isinstance(engine, RayEngine):
            search = search if whole else engine.settle(search)
            given["workers"] = engine.workers
        ctx.obj["search"].update(asdict(search))
        yield engine, search


class Session(NamedTuple):
    """A network that is about to be trained.

    Attributes:
        fit: trains it, in place, with its files in a folder of the run, and gives one record per epoch.
    """

    run: RunFolder
    network: Network
    dataset: AnyData
    fit: Callable[[Path], Sequence[Mapping[str, Any]]]

    def judge(self) -> dict[str, Any]:
        """Loss and score of the network as it is now, wherever it is."""
        return judge(self.network.model, self.dataset, self.network.device)


@contextlib.contextmanager
def open_training(ctx: typer.Context, why: str) -> Iterator[Session]:
    """The training that the options ask for."""
    given = ctx.params
    recipe = make_recipe(given["recipe"], {"seed": given["seed"], **ctx.obj.get("tune", {})}, given["epochs"])
    listen(given["quiet"])
    device = pick_device(given["device"])
    check_precision(device, recipe)
    network, dataset = open_both(given, device, why, why, given["seed"])
    assert dataset is not None
    with wrong_usage():
        check_weights(network.model)
    teacher = _teacher(network) if recipe.distill > 0 else None

    def train(folder: Path) -> Sequence[Mapping[str, Any]]:
        result = fit(
            network.model,
            dataset,
            recipe,
            run_dir=folder,
            resume=given["resume"],
            teacher=teacher,
            progress=not given["quiet"],
            device=None if given["device"] == "auto" else device,
        )
        network.model.eval()
        return result.history

    with open_run(ctx, given["model"]) as run:
        network.describe(run)
        yield Session(run, network, dataset, train)


def _teacher(network: Network) -> nn.Module:
    """The network before it was pruned, with its weights: what distillation imitates."""
    if network.plan is None or network.run is None or network.run.command not in ("prune", "pareto", "compare"):
        raise UsageError(
            "tune.distill needs the unpruned network as a teacher: tune a folder of `prune`, `pareto` or `compare`"
        )
    return open_network(network.run.settings, device=network.device).model
