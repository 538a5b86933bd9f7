"""What every way to prune begins with: its arguments turned into a task, a clock and an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from lcprune.batches import check_samples, check_weights, draw
from lcprune.engine import Job, make_engine
from lcprune.errors import ConfigError, DataError
from lcprune.evaluate import Evaluation
from lcprune.graph import ChannelGraph, trace
from lcprune.latency.clock import Clock, make_clock
from lcprune.latency.limit import Latency
from lcprune.limit import LATENCY, Limit, Several, parse_limits
from lcprune.method import Method
from lcprune.scoring import metrics
from lcprune.select import Limits
from lcprune.task import Task, width_of

if TYPE_CHECKING:
    from lcprune.data import Dataset

AUTO = "auto"  # each method's own metric
TUNED = "l2"  # instead, where cut networks are tuned: "rebuilt" asks what is lost without (docs/results/resnet-56.md)
AnyMetric = str | Callable[..., Any]
Data = Evaluation | Iterable[Any]
Where = Job | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of one call.

    Attributes:
        task: all but the limits; with the metric of the first method that needs data, if any does.
        folder: of the run, on this machine; None if there is none.
        networks: where the networks are saved; None for nowhere.
        clock: what predicts and measures latency; None without a limit on it.
        scheduled: whether the user says what stays.
        metric: as the user gave it.
    """

    task: Task
    folder: Path | None
    clock: Clock | None
    scheduled: bool = False
    networks: Path | None = None
    metric: AnyMetric = AUTO

    def task_of(self, method: Method) -> Task:
        """The task, with a method's own metric if the user named none."""
        metric = metric_of(self.metric, method, self.task.evaluation)
        return self.task if metric == self.task.metric else self.task.but(metric=metric)

    def limits(self, own: Mapping[str, Limit]) -> Limits:
        """Limits by what they limit, with what predicts the latency."""
        # A schedule's latency is measured, and not refused on the strength of a guess.
        guessed = self.clock is not None and not (self.scheduled and self.clock.backend is not None)
        extra = self.clock.extra(own[LATENCY]) if self.clock is not None and guessed and LATENCY in own else {}
        return Limits(own.get("macs"), own.get("params"), extra)


@contextmanager
def set_up(
    model: nn.Module | ChannelGraph,
    example_inputs: Any,
    methods: Sequence[Method],
    *,
    latency: Latency | None,
    metric: AnyMetric,
    data: Data | None,
    min_keep: float,
    multiple_of: int | None,
    seed: int,
    run: Where | None,
    progress: bool,
) -> Iterator[Setup]:
    """Trace, draw images, measure what a latency limit needs, and start the engine; ended on the way out.

    Args:
        methods: that will choose; others are arguments of `prune`.

    Raises:
        DataError: a method needs data, and there is none.
    """
    job, how = Job.of(run), Evaluation.of(data)
    for method in methods:
        if method.needs_data and how.data is None:
            raise DataError(f"method {method.name!r} needs data=, an iterable of (input, target) or input batches")
    engine = make_engine(job.engine)
    graph = _graph(model, example_inputs)
    check_weights(graph.model, graph.unread)
    first = next((method for method in methods if method.needs_data), methods[0])
    own_metric = metric_of(metric, first, how)
    samples = None if how.data is None else draw(how.data, how.images, seed)
    if samples is not None:
        judged = any(method.needs_data for method in methods)
        judged = judged or (isinstance(own_metric, str) and metrics.get(own_metric).needs_data)
        check_samples(graph.model, samples, judged and how.loss_fn is None)
    width = width_of(graph, multiple_of)
    folder = None if job.folder is None else Path(job.folder)
    clock = None if latency is None else make_clock(graph, latency, min_keep, width, folder, job.resume)
    task = Task(
        graph=graph,
        limits=Limits(),
        metric=own_metric,
        samples=samples,
        evaluation=replace(how, data=None),
        min_keep=min_keep,
        multiple_of=width,
        seed=seed,
        progress=progress,
        resume=job.resume,
        dataset=_dataset_of(how.data),
        engine=engine,
    )
    with engine:
        scheduled = all(method.scheduled for method in methods)
        yield Setup(task, folder, clock, scheduled, folder if job.networks else None, metric)


def metric_of(metric: AnyMetric, method: Method, evaluation: Evaluation) -> AnyMetric:
    """What a method's units are scored by: what the user says, or its own."""
    return method.own_metric(evaluation) if isinstance(metric, str) and metric == AUTO else metric


def limits_of(macs: Several | None, params: Several | None, latency: Latency | None) -> dict[str, tuple[Limit, ...]]:
    """What is limited -> its limits, one alone, too, as a tuple."""
    given = {"macs": macs, "params": params, LATENCY: None if latency is None else latency.limits}
    return {name: parse_limits(some, name) for name, some in given.items() if some is not None}


def _graph(model: nn.Module | ChannelGraph, example_inputs: Any) -> ChannelGraph:
    if isinstance(model, ChannelGraph):
        if example_inputs is not None:
            raise ConfigError("a traced graph has its own example inputs: give the graph alone")
        return model
    if example_inputs is None:
        raise ConfigError("example_inputs are needed to trace the network: a tensor, a tuple of them, or a dict")
    return trace(model, example_inputs)


def _dataset_of(data: Any) -> Dataset | None:
    from lcprune.data import Dataset

    source = getattr(data, "dataset", None)
    return source if isinstance(source, Dataset) else None
