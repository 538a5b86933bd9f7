"""Algorithm 1: prune, tune, tighten the limit, again."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from lcprune.choosing import methods
from lcprune.copies import trainable
from lcprune.errors import ConfigError, PlanError
from lcprune.framework import prune_once
from lcprune.graph import ChannelGraph, trace
from lcprune.latency.limit import Latency, LatencyOutcome
from lcprune.limit import COUNT, LATENCY, MS, Limit, Several
from lcprune.method import Method
from lcprune.outcome import PruneResult, PruneStep, compose, load_step, save_step
from lcprune.repairs import STAND_INS, check_how
from lcprune.select import Limits
from lcprune.setup import AUTO, TUNED, AnyMetric, Data, Setup, Where, limits_of, set_up
from lcprune.task import Task

logger = logging.getLogger("lcprune")

STEPS = 3

Tune = Callable[[nn.Module], "nn.Module | None"]


@trainable
def prune_in_steps(
    model: nn.Module | ChannelGraph,
    example_inputs: Any = None,
    *,
    tune: Tune | None,
    steps: int | None = None,
    macs: Several | None = None,
    params: Several | None = None,
    latency: Latency | Several | None = None,
    method: str | Method = "lcp",
    metric: AnyMetric = "auto",
    data: Data | None = None,
    repair: str = STAND_INS,
    min_keep: float = 0.10,
    multiple_of: int | None = None,
    seed: int = 0,
    run: Where | None = None,
    progress: bool = True,
) -> PruneResult:
    """Prune, tune, tighten the limit, and again: each round cuts the tuned network of the one before (Algorithm 1).

    Args:
        model: the trained network, left untouched; or what `lcprune.trace` gave for it.
        example_inputs: a tensor, a tuple of them, or a dict of keyword arguments, that the network can be called with;
            none with a traced graph.
        tune: trains the cut network after each round, in place (or returns another one of the same shapes); None trains
            nothing.
        steps: number of rounds, in equal steps from the whole network to the limit; 3 if None, or as many as there are
            limits in a list.
        macs: a limit as in `prune`, or a list with that of each round.
        params: likewise.
        latency: likewise; only the last network is held to it.
        method: as in `prune`.
        metric: as in `prune`; "auto" is "l2" if there is `tune`.
        data: as in `prune`.
        repair: as in `prune`, of each round's network before it is tuned.
        min_keep: share of each group of the first network that always stays.
        multiple_of: as in `prune`.
        seed: of the first round; the others' follow.
        run: as in `prune`; the folder has each round's records and network, and finished rounds are not made again.
        progress: show bars.

    Raises:
        BudgetError: a limit cannot be met; the message has the smallest that can.
        PlanError: a cut network does not compute what it should; the error's `result` has what was found.
    """
    chosen, wanted, how = methods.make(method), Latency.of(latency), check_how(repair)
    _check_tune(tune)
    given = limits_of(macs, params, wanted)
    with set_up(
        model,
        example_inputs,
        [chosen],
        latency=wanted,
        metric=TUNED if isinstance(metric, str) and metric == AUTO and tune is not None else metric,
        data=data,
        min_keep=min_keep,
        multiple_of=multiple_of,
        seed=seed,
        run=run,
        progress=progress,
    ) as setup:
        limits = tightening(setup, given, steps)
        result = _iterate(setup, chosen, tune, limits, given[LATENCY][-1] if LATENCY in given else None, how)
        if setup.networks is not None:
            result.save(setup.networks)
        return result


def _check_tune(tune: Any) -> None:
    if tune is not None and not callable(tune):
        shown = repr(tune) if isinstance(tune, str) else type(tune).__name__
        raise ConfigError(
            f"tune={shown} is not a function of the cut network: give e.g. "
            "tune=lambda model: lcprune.tune.fit(model, dataset, 'finetune').model"
        )


def _iterate(
    setup: Setup, method: Method, tune: Tune | None, limits: Sequence[Limits], latency: Limit | None, repair: str
) -> PruneResult:
    first, base = setup.task.graph, setup.task
    floors = base.rank([np.zeros(size) for size in first.cost.sizes]).floors
    kept = {group.name: np.arange(group.size) for group in first.groups}
    done: list[PruneStep] = []
    result = PruneResult(first.model, first.plan({}), [])
    # What a finished round must have been made with to be gone on from.
    settings = {} if setup.folder is None else {**method.settings(), **base.settings(), "repair": repair}
    for number, limit in enumerate(limits, start=1):
        folder = None if setup.folder is None else setup.folder / f"step-{number:02d}"
        config = {"limits": replace(base, limits=limit).absolute_limits, **settings}
        checkpoint = load_step(folder, config, first) if base.resume else None
        if checkpoint is not None:
            network, step = checkpoint
            kept = {name: np.asarray(units) for name, units in step.plan.kept.items()}
            held = step.plan.meta.get("latency")
            outcome = None if held is None else LatencyOutcome.from_json(held)
            done.append(step)
            result = PruneResult(network, step.plan, step.history, tuple(done), latency=outcome)
            continue
        task, clock = _round(setup, result.model, limit, number, kept, floors)
        if folder is not None:
            task = replace(task, records=folder / "search.jsonl")
        logger.info("step %d of %d: %s", number, len(limits), config["limits"])
        try:
            # What the rounds before the last one take does not matter: only the last is held to the clock.
            last = number == len(limits)
            made = prune_once(task, method, clock if last else None, latency if last else None, repair)
        except PlanError as error:
            if error.result is not None:
                error.result = replace(error.result, steps=(*done, *error.result.steps))
            raise
        kept = compose(kept, made.plan.kept)
        network = made.model if tune is None else tune(made.model) or made.model
        whole = first.plan(kept).with_meta(**made.plan.meta, step=number)
        done.append(PruneStep(task.absolute_limits, whole, made.history))
        result = replace(made, model=network, plan=whole, steps=tuple(done), whole=None)
        save_step(folder, config, network, whole)
    return result


def _round(
    setup: Setup, model: nn.Module, limit: Limits, number: int, kept: Mapping[str, Any], floors: Any
) -> tuple[Task, Any]:
    """The task and the clock of one round."""
    first = setup.task.graph
    graph = first if model is first.model else trace(model, first.example_inputs, ignore=first.ignore)
    clock = None if setup.clock is None else setup.clock.after(graph, kept)
    if clock is not None and LATENCY in limit.extra:
        limit = replace(limit, extra={LATENCY: limit.extra[LATENCY]._replace(cost=clock.predict)})
    own = [min(floors[first.cost.names.index(group.name)], group.size) for group in graph.groups]
    task = replace(setup.task, graph=graph, limits=limit, seed=setup.task.seed + number - 1, floors=np.array(own))
    return task, clock


def tightening(setup: Setup, given: Mapping[str, tuple[Limit, ...]], steps: int | None = None) -> list[Limits]:
    """The limits of each round; absolute if there are several, since later networks are smaller.

    Args:
        setup: the network before the first round.
        given: what is limited -> one limit, or one per round.
        steps: number of rounds for limits given as one: equal steps from the whole network to it.

    Raises:
        ConfigError: sequences of different lengths, or limits that grow.
    """
    rounds = {len(limits) for limits in given.values()} - {1}
    if len(rounds) > 1:
        raise ConfigError(f"the lists of limits have different lengths: {sorted(rounds)}")
    if rounds and steps not in (None, *rounds):
        raise ConfigError(f"steps={steps}, but the list of limits has {rounds.pop()} of them; give one or the other")
    count = rounds.pop() if rounds else STEPS if steps is None else steps
    if count < 1:
        raise ConfigError("Algorithm 1 needs at least one step")
    if count > 1:
        graph, clock = setup.task.graph, setup.clock
        wholes = {"macs": graph.macs, "params": graph.params, LATENCY: 0.0 if clock is None else clock.whole}
        given = {name: _column(name, limits, count, float(wholes[name])) for name, limits in given.items()}
    return [setup.limits({name: limits[index] for name, limits in given.items()}) for index in range(count)]


def _column(name: str, limits: tuple[Limit, ...], count: int, whole: float) -> tuple[Limit, ...]:
    """One absolute limit per round."""
    values = [limit.of(whole) for limit in limits]
    if any(later > earlier for earlier, later in itertools.pairwise(values)):
        shown = ", ".join(limit.written for limit in limits)
        raise ConfigError(f"{name}=[{shown}] grows: Algorithm 1 tightens its limit from step to step")
    if len(values) == 1:
        values = np.linspace(whole, values[0], count + 1)[1:].tolist()
        limits = limits * count
    unit = MS if name == LATENCY else COUNT
    return tuple(Limit(value, unit, limit.written) for value, limit in zip(values, limits, strict=True))
