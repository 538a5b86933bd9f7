"""A frontier of networks: one search, many limits, with naive and uniform pruning beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.choosing import methods
from lcprune.compensations import LEARN, choose
from lcprune.engine import Engine, make_engine
from lcprune.errors import ConfigError
from lcprune.evaluate import draw
from lcprune.framework import hold_choice
from lcprune.graph import ChannelGraph, trace
from lcprune.latency.clock import Clock, make_clock
from lcprune.latency.hold import HELD
from lcprune.latency.limit import Latency, LatencyOutcome
from lcprune.limit import LATENCY, Limit, Written, is_list, parse_limits
from lcprune.mirror import on_any_file_system
from lcprune.outcome import check
from lcprune.search import Record, Search, objective
from lcprune.select import Limits
from lcprune.task import Choice, Task, width_of

if TYPE_CHECKING:
    from lcprune.plan import Plan

METHODS = ("lcp", "naive", "uniform")


@dataclass(frozen=True, eq=False)
class Point:
    """One network of a frontier.

    Attributes:
        method: how it was chosen.
        limit: the limit that it was made for: a share, or an absolute number.
        plan: what it keeps; has `macs` and `params`.
        loss: on the drawn images, before tuning.
        difference: |L(full) - loss|.
        graph: of the network it is cut from.
        latency: limit, prediction and measurement, if there was a latency limit.
        history: the search at this very limit; empty where there was none.
    """

    method: str
    limit: float
    plan: Plan
    loss: float
    difference: float
    graph: ChannelGraph
    latency: LatencyOutcome | None = None
    history: list[Record] = field(default_factory=list)

    @property
    def macs(self) -> float:
        """Multiply-adds of the network."""
        return float(self.plan.macs)

    @property
    def params(self) -> float:
        """Parameters of the network."""
        return float(self.plan.params)

    @cached_property
    def model(self) -> nn.Module:
        """The smaller network, cut when it is first asked for."""
        return self.plan.apply(self.graph.model)


@dataclass(frozen=True, eq=False)
class Frontier:
    """Networks at several limits.

    Attributes:
        points: of every method, in the order of the limits.
        full_loss: of the network before pruning.
        histories: limit that was searched at -> records of the search; of equal limits the last (points have theirs).
        beta: the reused compensation; None if every limit has its own.
    """

    points: tuple[Point, ...]
    full_loss: float
    histories: dict[float, list[Record]] = field(default_factory=dict)
    beta: NDArray[np.float64] | None = None

    def curve(self, method: str = "lcp") -> tuple[Point, ...]:
        """The points of one method."""
        return tuple(point for point in self.points if point.method == method)


@on_any_file_system
def pareto(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    macs: Sequence[Written] | None = None,
    params: Sequence[Written] | None = None,
    latency: Latency | Sequence[Written] | None = None,
    learn: str = "sweep",
    compare: Sequence[str] = METHODS,
    metric: str | Callable[..., Any] = "l2",
    loss_fn: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy,
    min_keep: float = 0.10,
    multiple_of: int | None = None,
    seed: int = 0,
    search: Search | None = None,
    progress: bool = True,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    graph: ChannelGraph | None = None,
    ignore: Sequence[str] = (),
    verify: bool = True,
    engine: str | Engine = "local",
) -> Frontier:
    """Prune a network to several limits.

    Args:
        model: the trained network; left untouched.
        example_inputs: a tensor, or a tuple of them, that it can be called with.
        data: iterable of (input, target) batches.
        macs: limits, each as in `prune`.
        params: limits, instead of `macs` or beside it (as many).
        latency: limits, likewise, or a `Latency` that has a list of them; each network is held to its own.
        learn: "sweep" shares the candidates of one search among the limits, the loosest first, and begins at each
            with the best compensations of the one before: a frontier for the price of one search, nowhere worse
            than naive pruning on the search's own objective; `seed` is the first part's, the others' follow from it.
            "tightest" learns one compensation at the tightest limit and reuses it for all others. "each" has a whole
            search per limit.
        compare: methods whose frontiers are wanted.
        metric, loss_fn, min_keep, multiple_of, seed, search, progress, graph, ignore, verify, engine: as in `prune`.
        run_dir: folder for the searches' records and what was measured.
        resume: go on from that folder.

    Returns:
        The networks with costs and losses before tuning.
    """
    if learn not in LEARN:
        raise ConfigError(f"learn={learn!r} is not known; choose one of {', '.join(map(repr, LEARN))}")
    strange = sorted(set(compare) - set(METHODS))
    if strange:
        raise ConfigError(f"compare={strange} are not methods of a frontier; choose out of {', '.join(METHODS)}")
    search, wanted = search or Search(), _listed(latency)
    columns = _columns(macs, params, wanted)
    example_inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    graph = graph or trace(model, example_inputs, ignore=ignore)
    folder = None if run_dir is None else Path(run_dir)
    width = width_of(graph, multiple_of)
    clock = None if wanted is None else make_clock(graph, wanted, min_keep, width, folder, resume)
    given, limits = _limits(columns, clock)
    task = Task(
        graph=graph,
        limits=limits[0],
        metric=metric,
        samples=draw(data, search.images, seed),
        loss_fn=loss_fn,
        min_keep=min_keep,
        multiple_of=width,
        seed=seed,
        search=search,
        progress=progress,
        resume=resume,
    )
    with make_engine(engine) as task.engine:
        task.search = search = task.engine.settle(search)
        kept, histories, learned = choose(task, given, limits, learn, compare, folder)
        # Whatever the search did to its candidates, the frontier is that of the networks as they are cut.
        judge = task.evaluator if not search.prepares else _plain(task).evaluator
        judge = judge if judge.precision == "fp32" else judge.exactly()
        full_loss = judge.full_loss()
        points = []
        for method in compare:
            for index, (limit, units) in enumerate(zip(given, kept[method], strict=True)):
                plan, outcome = None, None
                if clock is not None and wanted is not None:
                    own = replace(task, limits=limits[index])
                    own.scores = task.scores
                    choice = Choice(units, meta=learned[index] if method == "lcp" else {})
                    keep = None if folder is None else folder / f"{method}-{index}-{HELD}"
                    plan, _, outcome = hold_choice(own, methods.get(method), choice, clock, wanted.limits[index], keep)
                    units = [np.asarray(plan.kept[group.name]) for group in graph.groups]
                loss = judge.loss(units)
                difference = objective(full_loss, loss)
                plan = (plan or graph.plan(units)).with_meta(
                    method=method,
                    metric=task.metric_name,
                    limit=limit,
                    min_keep=min_keep,
                    multiple_of=width,
                    seed=seed,
                    difference=difference if np.isfinite(difference) else None,
                    **({**learned[index], "learn": learn} if method == "lcp" else {}),
                    **({} if outcome is None else {"latency": outcome.to_json()}),
                )
                if verify:
                    check(graph, plan)
                history = histories.get(index, []) if method == "lcp" else []
                points.append(Point(method, limit, plan, loss, difference, graph, outcome, history))
    beta = np.array(learned[0]["beta"]) if learned and learn == "tightest" else None
    return Frontier(tuple(points), full_loss, {given[index]: found for index, found in histories.items()}, beta)


def _plain(task: Task) -> Task:
    return replace(task, search=replace(task.search, recalibrate=False, tune_steps=0, prepare=None))


def _listed(latency: Latency | Sequence[Written] | None) -> Latency | None:
    """A latency that has a list of limits."""
    if latency is None:
        return None
    _several(LATENCY, latency.limit if isinstance(latency, Latency) else latency)
    return Latency.of(latency)


def _several(name: str, given: Any) -> Any:
    if not is_list(given):
        shown = given.written if isinstance(given, Limit) else repr(given)
        raise ConfigError(f"{name}={shown} is one limit: a frontier takes a list, {name}=[{shown}]")
    return given


def _columns(
    macs: Sequence[Written] | None, params: Sequence[Written] | None, latency: Latency | None
) -> dict[str, tuple[Limit, ...]]:
    """What is limited -> the limits, as many of each."""
    given = {"macs": macs, "params": params, LATENCY: None if latency is None else latency.limits}
    columns = {name: parse_limits(_several(name, some), name) for name, some in given.items() if some is not None}
    sizes = {len(column) for column in columns.values()}
    if not sizes or 0 in sizes:
        raise ConfigError("a frontier needs limits, e.g. macs=['20%', '30%', '50%', '70%']")
    if len(sizes) > 1:
        told = " and ".join(f"{name} has {len(column)} limits" for name, column in columns.items())
        raise ConfigError(f"{told}: give as many of each")
    return columns


def _limits(columns: dict[str, tuple[Limit, ...]], clock: Clock | None) -> tuple[list[float], list[Limits]]:
    """The number that names each network's limit, and all limits that hold for it."""
    first = next(iter(columns.values()))
    limits = []
    for index in range(len(first)):
        own = {name: column[index] for name, column in columns.items()}
        extra = {} if clock is None else clock.extra(own[LATENCY])
        limits.append(Limits(own.get("macs"), own.get("params"), extra))
    return [limit.number for limit in first], limits
