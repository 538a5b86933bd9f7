"""`--engine`, `--address`, `--workers`, `--asynchronous`: where a command's work is done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace

import typer

from lcprune.cli.command import UsageError, resolve_section, sections, wrong_usage
from lcprune.engine import Engine, RayEngine, make_engine
from lcprune.search import Search


@contextlib.contextmanager
def open_engine(ctx: typer.Context, search: Search, whole: bool = False) -> Iterator[tuple[Engine, Search]]:
    """The engine that the options ask for, and the search as it is done there.

    The number of candidates asked together goes into the run's configuration, so that `--resume` goes on with the same
    search even if other machines, or another number of them, do the work.

    Args:
        whole: whole searches are shared out, not the candidates of one.
    """
    name, address, workers, asynchronous, device = (
        ctx.params.get(key) for key in ("engine", "address", "workers", "asynchronous", "device")
    )
    if name == "local" and not _typed(ctx, "workers") and not _typed(ctx, "address"):
        address = workers = None  # the folder of --resume was made by more machines
    with wrong_usage():
        engine = make_engine(name, address, workers)
    if isinstance(engine, RayEngine):
        engine.gpus = device != "cpu"
    elif asynchronous:
        raise UsageError("--asynchronous needs --engine ray: one worker has nobody to wait for")
    with engine:
        search = replace(search, asynchronous=True) if asynchronous else search
        if engine.name != "local":
            search = search if whole else engine.settle(search)
            ctx.params["workers"] = engine.workers
        resolve_section(ctx, "search", {**sections(ctx).get("search", {}), **asdict(search)})
        yield engine, search


def _typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
