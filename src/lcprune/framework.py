"""Pruning a network in one cut."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from lcprune.choosing import methods
from lcprune.copies import trainable
from lcprune.errors import ConfigError
from lcprune.graph import ChannelGraph
from lcprune.latency.clock import Clock
from lcprune.latency.hold import HELD, hold
from lcprune.latency.limit import Latency, LatencyOutcome
from lcprune.limit import COUNT, LATENCY, Limit, Written
from lcprune.method import Method
from lcprune.outcome import PruneResult, PruneStep, check, repaired
from lcprune.repairs import AUTO, NONE, check_how
from lcprune.select import Kept
from lcprune.setup import AnyMetric, Data, Where, limits_of, set_up
from lcprune.task import Choice, Task

if TYPE_CHECKING:
    from lcprune.plan import Plan


@trainable
def prune(
    model: nn.Module | ChannelGraph,
    example_inputs: Any = None,
    *,
    macs: Written | None = None,
    params: Written | None = None,
    latency: Latency | Written | None = None,
    method: str | Method = "lcp",
    metric: AnyMetric = "auto",
    data: Data | None = None,
    repair: str = AUTO,
    min_keep: float = 0.10,
    multiple_of: int | None = None,
    seed: int = 0,
    run: Where | None = None,
    progress: bool = True,
) -> PruneResult:
    """Cut a trained network down to a limit, with the least change of its loss.

    Args:
        model: the trained network, left untouched; or what `lcprune.trace` gave for it.
        example_inputs: a tensor, a tuple of them, or a dict of keyword arguments, that the network can be called with;
            none with a traced graph.
        macs: most multiply-adds: a share ("50%", or a number up to 1) or an absolute number ("62.7M", 62.7e6).
        params: most parameters, likewise. Several limits mean that all hold.
        latency: most milliseconds, likewise: "60%" of the network's own latency, "3.5ms", or a `Latency` that also says
            with which batch size and backend. The cut network is measured in turns with the original one and, while it
            misses the limit or leaves much of it unused, selected again from the same ranking.
        method: one of `lcprune.methods()`, or an object with settings of its own: `lcprune.LcP(search=...)`,
            `lcprune.Schedule({"layer1.*": 0.5})`, `lcprune.baselines.Amc(episodes=200)`.
        metric: one of `lcprune.metrics()`, or a function `graph -> scores`. "auto" is "rebuilt", what units that stay
            cannot rebuild, where LcP judges repaired candidates, and "l2" elsewhere, as in the paper. Name "l2" if you
            will train the result for long.
        data: iterable of (input, target) batches, or of inputs alone, for repair and for methods and metrics that need
            it; or an `Evaluation` that also says after what, with which loss, by how many images and in which precision
            networks are judged. Repaired classifiers, and networks without targets, are judged by how close they are to
            the whole network; methods that train and metrics that use the loss need targets. Methods that train use
            the whole set behind the batches, if it has one from `lcprune.data`.
        repair: what is done to the cut network where there is data, without labels or training: "auto" for what comes
            closest to the whole network, or one of "none", "statistics", "stand-ins", "refit", "distil"; see
            `lcprune.repair`.
        min_keep: share of each group that always stays.
        multiple_of: kept widths are multiples of this; None is 8 for CUDA in half precision and 1 elsewhere.
        seed: of the drawn images and of the search.
        run: folder for the network and its records, or a `Job` that also says whether to go on from it and which
            engine does the work.
        progress: show bars.

    Raises:
        BudgetError: a limit cannot be met; the message has the smallest that can.
        PlanError: the cut network does not compute what it should; the error's `result` has what was found.
    """
    chosen, wanted, how = methods.make(method), Latency.of(latency), check_how(repair)
    own: dict[str, Limit] = {}
    for name, column in limits_of(macs, params, wanted).items():
        if len(column) != 1:
            raise ConfigError(
                f"{name}=[{', '.join(limit.written for limit in column)}]: prune takes one limit. lcprune.pareto makes "
                "a network for each, lcprune.prune_in_steps tightens from one to the next"
            )
        own[name] = column[0]
    with set_up(
        model,
        example_inputs,
        [chosen],
        latency=wanted,
        metric=metric,
        data=data,
        min_keep=min_keep,
        multiple_of=multiple_of,
        seed=seed,
        run=run,
        progress=progress,
    ) as setup:
        records = None if setup.folder is None else setup.folder / "search.jsonl"
        task = replace(setup.task, limits=setup.limits(own), records=records)
        result = prune_once(task, chosen, setup.clock, own.get(LATENCY), how)
        if setup.networks is not None:
            result.save(setup.networks)
        return result


def prune_once(
    task: Task, method: Method, clock: Clock | None = None, latency: Limit | None = None, repair: str = NONE
) -> PruneResult:
    """Choose, cut, repair and prove one network.

    Args:
        task: what is pruned, and to what.
        method: how.
        clock: holds the cut network to its latency; None for nobody.
        latency: the limit on it.
        repair: how the cut network is repaired; where there is no data, it is not.

    Raises:
        PlanError: the cut network does not compute what it should.
    """
    choice = method.choose(task)
    graph = task.graph if choice.model is None else replace(task.graph, model=choice.model)
    outcome = None
    if clock is None or latency is None:
        plan = task.graph.plan(choice.kept)
        smaller = plan.apply(graph.model)
    else:
        keep = None if task.records is None else task.records.with_name(HELD)
        plan, smaller, outcome = hold_choice(task, method, choice, clock, latency, keep)
    plan = plan.with_meta(
        method=method.name,
        metric=task.metric_name,
        limits=task.absolute_limits,
        min_keep=task.min_keep,
        multiple_of=task.multiple_of,
        seed=task.seed,
        **choice.meta,
        **({} if outcome is None else {"latency": outcome.to_json()}),
    )
    step = PruneStep(task.absolute_limits, plan, choice.history)
    result = PruneResult(smaller, plan, choice.history, (step,), choice.seconds, outcome, whole=graph.model)
    check(graph, plan, smaller, result)
    if task.samples is None:
        return result
    return repaired(result, graph, task.samples, repair, task.classes, task.seed, task.progress)


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

    def make(kept: Kept) -> tuple[Plan, nn.Module]:
        plan = task.graph.plan(kept)
        return plan, plan.apply(choice.model or task.graph.model)

    def again(macs: float) -> Kept | None:
        limits = replace(task.limits.without(LATENCY), macs=Limit(min(own, macs), COUNT))
        return method.reselect(task.but(limits=limits, scores=choice.scores), choice)

    return hold(clock, limit, choice.kept, make, again, keep, task.resume)
