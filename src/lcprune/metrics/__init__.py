"""How much each removable unit matters: one small function per metric, in a registry that anyone can extend.

    scores = lcprune.metrics.score(graph, "l2")                    # one array per group, in graph order
    scores = lcprune.metrics.score(graph, "taylor", data=batches)  # batches of (input, target)
    scores = lcprune.metrics.score(graph, lambda graph: [...])     # a function of your own
    lcprune.metrics.names()                                        # what there is; `lcprune.metrics()` too

A metric of your own under a name, here or in another package (entry points in the group "lcprune.metrics"):

    @lcprune.metrics.register("largest", needs_data=False)
    def largest(graph):
        return lcprune.metrics.sum_filters(graph, lambda weight: weight.abs().amax(1))
"""

import sys
from types import ModuleType

from lcprune.metrics import activations, gradients, weights  # noqa: F401  (they register themselves)
from lcprune.metrics._context import Context
from lcprune.metrics._registry import Metric, get, names, register
from lcprune.metrics._score import l2_normalised, score
from lcprune.metrics._units import sum_filters, sum_units

__all__ = [
    "Context",
    "Metric",
    "get",
    "l2_normalised",
    "names",
    "register",
    "score",
    "sum_filters",
    "sum_units",
]


class _Metrics(ModuleType):
    """The package itself can be called: `lcprune.metrics()` lists what there is, like `lcprune.methods()`."""

    def __call__(self) -> tuple[str, ...]:
        return names()


sys.modules[__name__].__class__ = _Metrics
