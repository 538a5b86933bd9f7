"""Metrics by name: our own, and those a user registers."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lcprune.errors import MetricError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring.units import Scores, checked, l2_normalised, sum_filters, sum_units

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """What a metric may use beside the graph.

    Attributes:
        data: batches of (input, target), read once; an input is a tensor, or a tuple or dict of them. In a pruning
            whose data are inputs alone, every target is () and the loss refuses it.
        loss_fn: (output, target) -> mean loss of the batch.
        seed: for metrics that draw.
        progress: whether to show a bar.
    """

    data: Iterable[Any] | None = None
    loss_fn: Callable[[Any, Any], torch.Tensor] = torch.nn.functional.cross_entropy
    seed: int = 0
    progress: bool = False


@dataclass(frozen=True)
class Metric:
    """A function from a graph to scores, and what it needs.

    Attributes:
        name: what users call it.
        function: `graph -> scores` or `(graph, context) -> scores`.
        needs_data: whether it reads batches of data.
    """

    name: str
    function: Callable[..., Any]
    needs_data: bool = False

    @property
    def takes_context(self) -> bool:
        """Whether the function wants a `Context` (data, loss, seed, progress) beside the graph."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:  # some built-in callables do not tell
            return False
        wanted = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len([p for p in wanted if p.default is p.empty]) > 1

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]


class Metrics:
    """How much each removable unit matters: one small function per metric, and whatever a metric of your own needs.

        scores = lcprune.metrics.score(graph, "l2")                    # one array per group, in graph order
        scores = lcprune.metrics.score(graph, "taylor", data=batches)  # batches of (input, target)
        scores = lcprune.metrics.score(graph, lambda graph: [...])     # a function of your own
        lcprune.metrics.names()                                        # what there is; `lcprune.metrics()` too

    A metric of your own under a name:

        @lcprune.metrics.register("largest", needs_data=False)
        def largest(graph):
            return lcprune.metrics.sum_filters(graph, lambda weight: weight.abs().amax(1))
    """

    l2_normalised = staticmethod(l2_normalised)
    sum_filters = staticmethod(sum_filters)
    sum_units = staticmethod(sum_units)

    def __init__(self) -> None:
        self.Context, self.Metric = Context, Metric  # what a metric is made of
        self._known: dict[str, Metric] = {}

    def __call__(self) -> tuple[str, ...]:
        """Every metric that can be named, sorted."""
        return self.names()

    def names(self) -> tuple[str, ...]:
        """Every metric that can be named, sorted."""
        return tuple(sorted(self._known))

    def get(self, name: str) -> Metric:
        """The metric of that name.

        Raises:
            MetricError: there is none.
        """
        if name not in self._known:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise MetricError(f"there is no metric {name!r}.{hint} There are {', '.join(self.names())}")
        return self._known[name]

    def register(self, name: str, needs_data: bool = False) -> Callable[[Function], Function]:
        """Decorator that makes a function available under a name.

        The function takes the graph, or the graph and a `Context`, and returns scores: one array per group in the
        order of `graph.groups`, or a dictionary from group names to arrays. Higher is more important.

        Args:
            name: what `metric=` will call it.
            needs_data: True if it reads `context.data`; `score` then asks for data before it starts.

        Raises:
            MetricError: the name is taken.
        """

        def add(function: Function) -> Function:
            if name in self._known:
                raise MetricError(f"metric {name!r} exists already; choose another name")
            self._known[name] = Metric(name, function, needs_data)
            return function

        return add

    def score(
        self,
        graph: ChannelGraph,
        metric: str | Metric | Callable[..., Any] = "l2",
        data: Iterable[Any] | None = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> Scores:
        """How much each unit matters.

        Args:
            graph: a traced network; left as it was, with no gradients, hooks or changed modes.
            metric: a name out of `names()`, or a function `graph -> scores` or `(graph, context) -> scores`.
            data: batches of (input, target), read once and moved to the network's device; needed by data-driven
                metrics.
            loss_fn: (output, target) -> mean loss over the batch; cross entropy if None.
            seed: for metrics that draw.
            progress: show a bar while data is read.

        Returns:
            One float64 array (units,) per group, in the order of `graph.groups`.

        Raises:
            MetricError: unknown metric, missing data, or scores that cannot be ranked.
        """
        if isinstance(metric, str):
            found = self.get(metric)
        elif isinstance(metric, Metric):
            found = metric
        elif callable(metric):
            found = Metric(getattr(metric, "__name__", type(metric).__name__), metric)
        else:
            raise MetricError(
                f"metric={metric!r} is neither a name nor a function; lcprune.metrics.names() lists names"
            )
        if found.needs_data and data is None:
            raise MetricError(f"metric {found.name!r} needs data: pass data=, an iterable of (input, target) batches")
        context = Context(data, loss_fn or torch.nn.functional.cross_entropy, seed, progress)
        scores = found.function(graph, context) if found.takes_context else found.function(graph)
        return checked(found.name, scores, graph)


metrics = Metrics()
