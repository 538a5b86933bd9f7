"""Metrics by name: our own, those a user registers, and those of other packages."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from lcprune.errors import MetricError

ENTRY_POINTS = "lcprune.metrics"

Function = TypeVar("Function", bound=Callable[..., Any])


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


_METRICS: dict[str, Metric] = {}


def register(name: str, needs_data: bool = False) -> Callable[[Function], Function]:
    """Decorator that makes a function available under a name.

    Args:
        name: what `metric=` will call it.
        needs_data: True if it reads `context.data`; `score` then asks for data before it starts.

    The function takes the graph, or the graph and a `Context`, and returns scores: one array per group in the
    order of `graph.groups`, or a dictionary from group names to arrays. Higher is more important.

    Raises:
        MetricError: the name is taken.
    """

    def add(function: Function) -> Function:
        if name in _METRICS:
            raise MetricError(f"metric {name!r} exists already; choose another name")
        _METRICS[name] = Metric(name, function, needs_data)
        return function

    return add


def names() -> tuple[str, ...]:
    """Every metric that can be named, sorted."""
    return tuple(sorted({*_METRICS, *_installed()}))


def get(name: str) -> Metric:
    """The metric of that name.

    Raises:
        MetricError: there is none, or the package that brings it is broken.
    """
    if name not in _METRICS and name in _installed():
        _load(name)
    if name not in _METRICS:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MetricError(f"there is no metric {name!r}.{hint} There are {', '.join(names())}")
    return _METRICS[name]


@cache
def _installed() -> dict[str, Any]:
    # Listed without importing: a broken package must not take the others with it.
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str) -> None:
    point = _installed()[name]
    try:
        found = point.load()
    except Exception as error:
        raise MetricError(f"metric {name!r} from {point.value!r} cannot be imported: {error}") from error
    if name in _METRICS:  # the module used the decorator on its way in
        return
    if isinstance(found, Metric):
        _METRICS[name] = Metric(name, found.function, found.needs_data)
    elif callable(found):
        _METRICS[name] = Metric(name, found, bool(getattr(found, "needs_data", False)))
    else:
        raise MetricError(f"metric {name!r} from {point.value!r} is a {type(found).__name__}, not a function")
