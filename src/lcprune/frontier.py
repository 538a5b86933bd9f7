"""A frontier of networks: one search, many limits, with naive and uniform pruning beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.batches import arithmetic, collate
from lcprune.choosing import methods as registry
from lcprune.compensations import LEARN, choose
from lcprune.copies import copy_to_run, trainable
from lcprune.errors import ConfigError
from lcprune.evaluate import CUT
from lcprune.evaluate.evaluator import mean_loss
from lcprune.framework import hold_choice
from lcprune.graph import ChannelGraph
from lcprune.latency.hold import HELD
from lcprune.latency.limit import Latency, LatencyOutcome
from lcprune.limit import LATENCY, Limit, Written, is_list, network_name
from lcprune.method import Method
from lcprune.outcome import PruneResult, check, repaired
from lcprune.repairs import AUTO, NONE, Repair, check_how
from lcprune.runs import network_folder
from lcprune.search import Record, objective
from lcprune.setup import AnyMetric, Data, Setup, Where, limits_of, set_up
from lcprune.storage import save
from lcprune.summary import headline
from lcprune.task import Choice, Task

if TYPE_CHECKING:
    from lcprune.plan import Plan

METHODS = ("lcp", "naive", "uniform")


@dataclass(frozen=True, eq=False, repr=False)
class Point:
    """One network of a frontier.

    Attributes:
        method: how it was chosen.
        limit: the limit that it was made for: a share, or an absolute number.
        plan: what it keeps; has `macs` and `params`.
        loss: on the drawn images, as cut.
        difference: |L(full) - loss|.
        graph: of the network it is cut from.
        latency: limit, prediction and measurement, if there was a latency limit.
        history: the search at this very limit; empty where there was none.
        repair: what was done to the cut network, if it was repaired.
        repaired_loss: on the drawn images, of the repaired network.
        repaired: that network; None if it was left as cut.
        name: in tables and folders: `lcp 50 %`.
    """

    method: str
    limit: float
    plan: Plan
    loss: float
    difference: float
    graph: ChannelGraph
    latency: LatencyOutcome | None = None
    history: list[Record] = field(default_factory=list)
    repair: Repair | None = None
    repaired_loss: float | None = None
    repaired: nn.Module | None = None
    name: str = ""

    def __repr__(self) -> str:
        loss = f"loss {self.loss:.4g}" if self.repaired_loss is None else f"loss {self.repaired_loss:.4g}, repaired"
        return f"Point({self.name}: {headline(self.plan)}, {loss})"

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
        """The smaller network; one that was not repaired is cut when it is first asked for."""
        return self.plan.apply(self.graph.model) if self.repaired is None else self.repaired


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        lines = [f"Frontier({len(self.points)} networks, loss of the whole network {self.full_loss:.4g}:"]
        return "\n".join([*lines, *(f"  {point}" for point in self.points[:12])]) + ")"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write every network into a folder of its own, `networks/lcp-50-pc`, that `lcprune.load` and commands take."""
        for place, point in enumerate(self.points):
            before = sum(other.name == point.name for other in self.points[:place])  # limits that read alike
            name = f"{point.name} {before + 1}" if before else point.name
            save(Path(folder) / network_folder(name), point.model, point.plan)

    def curve(self, method: str = "lcp") -> tuple[Point, ...]:
        """The points of one method."""
        return tuple(point for point in self.points if point.method == method)


@trainable
def pareto(
    model: nn.Module | ChannelGraph,
    example_inputs: Any = None,
    *,
    data: Data,
    macs: Sequence[Written] | None = None,
    params: Sequence[Written] | None = None,
    latency: Latency | Sequence[Written] | None = None,
    methods: Sequence[str | Method] = METHODS,
    learn: str = "sweep",
    metric: AnyMetric = "auto",
    repair: str = AUTO,
    min_keep: float = 0.10,
    multiple_of: int | None = None,
    seed: int = 0,
    run: Where | None = None,
    progress: bool = True,
) -> Frontier:
    """Prune a network to several limits.

    Args:
        model: the trained network, left untouched; or what `lcprune.trace` gave for it.
        example_inputs: a tensor, a tuple of them, or a dict of keyword arguments, that the network can be called with;
            none with a traced graph.
        data: iterable of (input, target) batches, or of inputs alone, or an `Evaluation`.
        macs: limits, each as in `prune`.
        params: limits, instead of `macs` or beside it (as many).
        latency: limits, likewise, or a `Latency` that has a list of them; each network is held to its own.
        methods: whose frontiers are wanted: "lcp", "naive", "uniform", or `lcprune.LcP(search=...)`.
        learn: "sweep" shares the candidates of one search among the limits, the loosest first, and begins at each
            with the best compensations of the one before: a frontier for the price of one search, nowhere worse
            than naive pruning on the search's own objective; `seed` is the first part's, the others' follow from it.
            "tightest" learns one compensation at the tightest limit and reuses it for all others. "each" has a whole
            search per limit.
        metric: as in `prune`.
        repair: as in `prune`, of every network.
        min_keep: as in `prune`.
        multiple_of: as in `prune`.
        seed: as in `prune`.
        run: as in `prune`; the folder has the searches' records and what was measured.
        progress: show bars.

    Returns:
        The networks with costs and losses as cut, and repaired.

    Raises:
        BudgetError: a limit cannot be met; the message has the smallest that can.
        PlanError: a cut network does not compute what it should; the error's `result` is the frontier.
    """
    if learn not in LEARN:
        raise ConfigError(f"learn={learn!r} is not known; choose one of {', '.join(map(repr, LEARN))}")
    wanted, chosen, how = _listed(latency), _by_name(methods), check_how(repair)
    given = _columns(macs, params, wanted)
    with set_up(
        model,
        example_inputs,
        list(chosen.values()),
        latency=wanted,
        metric=metric,
        data=data,
        min_keep=min_keep,
        multiple_of=multiple_of,
        seed=seed,
        run=run,
        progress=progress,
    ) as setup:
        frontier = _repaired(_make(setup, chosen, given, learn), setup.task, how)
        if setup.networks is not None:
            frontier.save(setup.networks)
        return frontier


def _make(
    setup: Setup, methods: Mapping[str, Method], columns: Mapping[str, tuple[Limit, ...]], learn: str
) -> Frontier:
    """Choose, hold to latencies, judge and prove every network."""
    given = [limit.number for limit in next(iter(columns.values()))]
    rows = [{name: column[index] for name, column in columns.items()} for index in range(len(given))]
    limits = [setup.limits(row) for row in rows]
    tasks = {name: setup.task_of(method) for name, method in methods.items()}
    found = choose(tasks, given, limits, learn, methods, setup.folder)
    task, graph = found.tasks.get("lcp", setup.task), setup.task.graph
    # Whatever the search did to its candidates, the frontier is that of the networks as they are cut.
    samples, how = task.shown
    plain = replace(how, after=CUT, prepare=None)
    judge = task.engine.evaluator(graph, samples, plain) if how.prepares else task.evaluator
    judge = judge if judge.precision == "fp32" else judge.exactly()
    full_loss = judge.full_loss()
    points = []
    for name, method in methods.items():
        for index, units in enumerate(found.kept[name]):
            learned = found.learned[index] if name == "lcp" else {}
            plan, outcome = None, None
            if setup.clock is not None:
                keep = None if setup.folder is None else setup.folder / f"{name}-{index}-{HELD}"
                own, choice = found.tasks[name].but(limits=limits[index]), Choice(units, meta=learned)
                plan, _, outcome = hold_choice(own, method, choice, setup.clock, rows[index][LATENCY], keep)
                units = [np.asarray(plan.kept[group.name]) for group in graph.groups]
            loss = judge.loss(units)
            difference = objective(full_loss, loss)
            plan = (plan or graph.plan(units)).with_meta(
                method=name,
                metric=found.tasks[name].metric_name,
                limit=given[index],
                min_keep=task.min_keep,
                multiple_of=task.multiple_of,
                seed=task.seed,
                difference=difference if np.isfinite(difference) else None,
                **({**learned, "learn": learn} if learned else {}),
                **({} if outcome is None else {"latency": outcome.to_json()}),
            )
            history = found.histories.get(index, []) if name == "lcp" else []
            title = network_name(name, rows[index])
            points.append(Point(name, given[index], plan, loss, difference, graph, outcome, history, name=title))
    beta = np.array(found.learned[0]["beta"]) if found.learned and learn == "tightest" else None
    histories = {given[index]: history for index, history in found.histories.items()}
    frontier = Frontier(tuple(points), full_loss, histories, beta)
    for point in points:
        check(graph, point.plan, None, frontier)
    return frontier


def _repaired(frontier: Frontier, task: Task, how: str) -> Frontier:
    """The frontier with every network repaired, judged again and proved."""
    if how == NONE:
        return frontier
    (samples, judged), points = task.shown, []
    batches = collate(samples, 128, next(task.graph.model.parameters()).device)
    for point in frontier.points:
        cut = PruneResult(point.model, point.plan, point.history)
        made = repaired(cut, point.graph, samples, how, task.classes, task.seed, task.progress)
        with torch.no_grad(), arithmetic():
            loss = float(mean_loss(copy_to_run(made.model), batches, judged.loss))
        model = None if made.model is cut.model else made.model
        points.append(replace(point, plan=made.plan, repair=made.repair, repaired_loss=loss, repaired=model))
    return replace(frontier, points=tuple(points))


def _by_name(methods: Sequence[str | Method]) -> dict[str, Method]:
    if isinstance(methods, (str, Method)):
        raise ConfigError(f"methods={methods!r} is one method: a frontier takes a list, methods=[{methods!r}]")
    found = {method.name: method for method in map(registry.make, methods)}
    strange = sorted(set(found) - set(METHODS))
    if strange:
        raise ConfigError(f"methods={strange} are not methods of a frontier; choose out of {', '.join(METHODS)}")
    if len(found) < len(methods):
        raise ConfigError("methods= names a method twice: a frontier has one curve of each")
    return found


def _listed(latency: Latency | Sequence[Written] | None) -> Latency | None:
    """A latency that has a list of limits."""
    if latency is None:
        return None
    _several(LATENCY, latency.limit if isinstance(latency, Latency) else latency)
    return Latency.of(latency)


def _several(name: str, given: Any) -> None:
    if given is not None and not is_list(given):
        shown = given.written if isinstance(given, Limit) else repr(given)
        raise ConfigError(f"{name}={shown} is one limit: a frontier takes a list, {name}=[{shown}]")


def _columns(
    macs: Sequence[Written] | None, params: Sequence[Written] | None, latency: Latency | None
) -> dict[str, tuple[Limit, ...]]:
    """What is limited -> the limits, as many of each."""
    _several("macs", macs)
    _several("params", params)
    found = limits_of(macs, params, latency)
    sizes = {len(column) for column in found.values()}
    if not sizes or 0 in sizes:
        raise ConfigError("a frontier needs limits, e.g. macs=['20%', '30%', '50%', '70%']")
    if len(sizes) > 1:
        told = " and ".join(f"{name} has {len(column)} limits" for name, column in found.items())
        raise ConfigError(f"{told}: give as many of each")
    return found
