"""Pruning a network: in one cut, or by Algorithm 1: prune, tune, tighten the limit, again."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from lcprune.choosing import methods, reselect
from lcprune.engine import Engine, make_engine
from lcprune.errors import DataError
from lcprune.evaluate import draw
from lcprune.graph import ChannelGraph, trace
from lcprune.latency.clock import Clock, make_clock
from lcprune.latency.hold import HELD, hold
from lcprune.latency.limit import Latency, LatencyOutcome
from lcprune.limit import COUNT, LATENCY, Limit, Several, parse_limits
from lcprune.method import Method
from lcprune.mirror import on_any_file_system
from lcprune.outcome import PruneResult, Step, check, compose, load_step, save_step
from lcprune.schedule import limit_schedule
from lcprune.search import Search
from lcprune.select import Kept, Limits, Ranking
from lcprune.task import Choice, Task, width_of

if TYPE_CHECKING:
    from lcprune.data import Dataset
    from lcprune.plan import Plan

logger = logging.getLogger("lcprune")

Tune = Callable[[nn.Module], "nn.Module | None"]


@on_any_file_system
def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    macs: Several | None = None,
    params: Several | None = None,
    latency: Latency | Several | None = None,
    method: str = "lcp",
    metric: str | Callable[..., Any] = "l2",
    data: Iterable[Any] | None = None,
    loss_fn: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy,
    min_keep: float = 0.10,
    multiple_of: int | None = None,
    seed: int = 0,
    search: Search | None = None,
    progress: bool = True,
    schedule: Mapping[str, float] | None = None,
    tune: Tune | None = None,
    steps: int = 1,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    graph: ChannelGraph | None = None,
    ignore: Sequence[str] = (),
    verify: bool = True,
    options: Mapping[str, Any] | None = None,
    engine: str | Engine = "local",
) -> PruneResult:
    """Cut a trained network down to a limit, with the least change of its loss.

    Args:
        model: the trained network; left untouched.
        example_inputs: a tensor, or a tuple of them, that it can be called with.
        macs: most multiply-adds: a share ("50%", or a number up to 1) or an absolute number ("62.7M", 62.7e6); a
            list of them is a schedule for Algorithm 1.
        params: most parameters, likewise. Several limits mean that all hold.
        latency: most milliseconds, likewise: "60%" of the network's own latency, "3.5ms", or a `Latency` that also says
            with which batch size and backend. The cut network is measured in turns with the original one and, while it
            misses the limit or leaves much of it unused, selected again from the same ranking.
        method: one of `lcprune.methods()`.
        metric: one of `lcprune.metrics()`, or a function `graph -> scores`.
        data: iterable of (input, target) batches, for methods and metrics that need it; `search.images`
            images are drawn from it once. Methods that train use the whole set behind it, if it has one from
            `lcprune.data`.
        loss_fn: `loss_fn(output, target)`, a mean over the batch.
        min_keep: share of each group that always stays.
        multiple_of: kept widths are multiples of this; None is 8 for CUDA in half precision and 1 elsewhere.
        seed: of the drawn images and of the search.
        search: settings of the search.
        progress: show bars.
        schedule: group name or pattern -> share to keep, for method="schedule".
        tune: trains the cut network after each step, in place (or returns another one of the same shapes).
        steps: reach the limit in this many rounds of prune, tune and tighten.
        run_dir: folder, here or on any file system of fsspec's (`s3://bucket/run`), for the search's records and, with
            several steps or tuning, a checkpoint of each.
        resume: go on from that folder.
        graph: what `lcprune.trace` gave for this network, to save tracing it again.
        ignore: passed to `lcprune.trace`.
        verify: prove that the cut network computes what the silenced one does.
        options: settings of the method's own, by name.
        engine: "local", "ray" (candidates are judged on every GPU or core of the cluster, or of this machine), or
            one from `lcprune.engine`.

    Raises:
        BudgetError: a limit cannot be met; the message has the smallest that can.
        PlanError: the surgery is not exact (with `verify`).
    """
    chosen = methods.get(method)
    if chosen.needs_data and data is None:
        raise DataError(f"method {method!r} needs data=, an iterable of (input, target) batches")
    own = chosen.read_options(options)
    search, wanted = search or Search(), Latency.of(latency)
    macs = None if macs is None else parse_limits(macs, "macs")
    params = None if params is None else parse_limits(params, "params")
    example_inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    graph = graph or trace(model, example_inputs, ignore=ignore)
    folder = None if run_dir is None else Path(run_dir)
    width = width_of(graph, multiple_of)
    clock = None if wanted is None else make_clock(graph, wanted, min_keep, width, folder, resume)
    asked = None if wanted is None else wanted.limits
    limits = limit_schedule(graph.cost, steps, macs=macs, params=params, latency=asked, clock=clock)
    if schedule and clock is not None and clock.backend is not None:
        # A schedule says what stays: its latency is measured, and not refused on the strength of a guess.
        limits = [limit.without(LATENCY) for limit in limits]
    task = Task(
        graph=graph,
        limits=limits[-1],
        metric=metric,
        samples=None if data is None else draw(data, search.images, seed),
        loss_fn=loss_fn,
        min_keep=min_keep,
        multiple_of=width,
        seed=seed,
        search=search,
        schedule=schedule,
        progress=progress,
        resume=resume,
        options=own,
        dataset=_dataset_of(data),
    )
    run = _Run(task, chosen, verify, tune, folder, tuple(ignore), clock, None if asked is None else asked[-1])
    with make_engine(engine) as task.engine:
        task.search = task.engine.settle(search)
        if len(limits) == 1 and tune is None:
            return run.once()
        return run.iterate(limits)


@dataclass(frozen=True, eq=False)
class _Run:
    """The parts of one call of `prune`."""

    task: Task
    method: Method
    verify: bool
    tune: Tune | None
    folder: Path | None
    ignore: tuple[str, ...]
    clock: Clock | None = None
    latency: Limit | None = None

    def once(self) -> PruneResult:
        task = self.task
        task.records = None if self.folder is None else self.folder / "search.jsonl"
        smaller, plan, choice, latency = self._cut(task, self.clock)
        step = Step(_absolute(task), plan, choice.history)
        return PruneResult(smaller, plan, choice.history, (step,), choice.seconds, latency)

    def iterate(self, limits: Sequence[Limits]) -> PruneResult:
        """Algorithm 1: each round cuts the tuned network of the one before."""
        first = self.task.graph
        floors = Ranking(
            [np.zeros(size) for size in first.cost.sizes],
            first.cost,
            self.task.min_keep,
            self.task.multiple_of,
        ).floors
        kept = {group.name: np.arange(group.size) for group in first.groups}
        model, done, seconds, latency = first.model, [], {}, None
        # What a finished round must have been made with to be gone on from.
        settings = {} if self.folder is None else {"method": self.method.name, **self.task.settings()}
        for number, limit in enumerate(limits, start=1):
            folder = None if self.folder is None else self.folder / f"step-{number:02d}"
            config = {"limits": _absolute(replace(self.task, limits=limit)), **settings}
            checkpoint = load_step(folder, config, first) if self.task.resume else None
            if checkpoint is not None:
                model, step = checkpoint
                kept = {name: np.asarray(units) for name, units in step.plan.kept.items()}
                done.append(step)
                held = step.plan.meta.get("latency")
                latency = None if held is None else LatencyOutcome.from_json(held)
                continue
            graph = first if model is first.model else trace(model, first.example_inputs, ignore=self.ignore)
            clock = None if self.clock is None else self.clock.after(graph, kept)
            if clock is not None and LATENCY in limit.extra:
                limit = replace(limit, extra={LATENCY: limit.extra[LATENCY]._replace(cost=clock.predict)})
            task = replace(
                self.task,
                graph=graph,
                limits=limit,
                seed=self.task.seed + number - 1,
                records=None if folder is None else folder / "search.jsonl",
                floors=np.array(
                    [min(floors[first.cost.names.index(group.name)], group.size) for group in graph.groups]
                ),
            )
            logger.info("step %d of %d: %s", number, len(limits), config["limits"])
            # What the rounds before the last one take does not matter: only the last is held to the clock.
            model, plan, choice, latency = self._cut(task, clock if number == len(limits) else None)
            kept = compose(kept, plan.kept)
            if self.tune is not None:
                model = self.tune(model) or model
            whole = first.plan(kept).with_meta(**plan.meta, step=number)
            step = Step(_absolute(task), whole, choice.history)
            done.append(step)
            seconds = choice.seconds
            save_step(folder, config, model, whole)
        return PruneResult(model, done[-1].plan, done[-1].history, tuple(done), seconds, latency)

    def _cut(self, task: Task, clock: Clock | None) -> tuple[nn.Module, Plan, Choice, LatencyOutcome | None]:
        choice = self.method.function(task)
        graph = task.graph if choice.model is None else replace(task.graph, model=choice.model)

        latency = None
        if clock is None or self.latency is None:
            plan = task.graph.plan(choice.kept)
            smaller = plan.apply(graph.model)
        else:
            keep = None if task.records is None else task.records.with_name(HELD)
            plan, smaller, latency = hold_choice(task, self.method, choice, clock, self.latency, keep)
        plan = plan.with_meta(
            method=self.method.name,
            metric=task.metric_name,
            limits=_absolute(task),
            min_keep=task.min_keep,
            multiple_of=task.multiple_of,
            seed=task.seed,
            **choice.meta,
            **({} if latency is None else {"latency": latency.to_json()}),
        )
        if self.verify:
            check(graph, plan, smaller)
        return smaller, plan, choice, latency


def hold_choice(
    task: Task, method: Method, choice: Choice, clock: Clock, limit: Limit, keep: Path | None
) -> tuple[Plan, nn.Module, LatencyOutcome]:
    """Cut what a method chose and hold it to its latency, along the method's own ranking.

    Args:
        task: what the method was given.
        method: the method.
        choice: what it chose.
        clock: of the network before.
        limit: on the latency.
        keep: where the answer is written down; None writes it nowhere.
    """
    own = math.inf if task.limits.macs is None else Limit.parse(task.limits.macs).of(task.graph.macs)

    def cut(kept: Kept) -> tuple[Plan, nn.Module]:
        plan = task.graph.plan(kept)
        return plan, plan.apply(choice.model or task.graph.model)

    def again(macs: float) -> Kept | None:
        limits = replace(task.limits.without(LATENCY), macs=Limit(min(own, macs), COUNT))
        return reselect(task, choice, method, limits)

    return hold(clock, limit, choice.kept, cut, again, keep, task.resume)


def _absolute(task: Task) -> dict[str, float]:
    return {bound.name: bound.value for bound in task.limits.bounds(task.graph.cost)} if task.limits else {}


def _dataset_of(data: Any) -> Dataset | None:
    from lcprune.data import Dataset

    source = getattr(data, "dataset", None)
    return source if isinstance(source, Dataset) else None
