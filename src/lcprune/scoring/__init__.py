"""How much each removable unit matters: one small function per metric, in a registry that anyone can extend."""

from lcprune.scoring import activations, gradients, weights  # noqa: F401  (they register themselves)
from lcprune.scoring.context import Context
from lcprune.scoring.registry import Metric, get, names, register
from lcprune.scoring.scores import l2_normalised, score
from lcprune.scoring.units import sum_filters, sum_units

__all__ = ["Context", "Metric", "Metrics", "metrics"]


class Metrics:
    """How much each removable unit matters: one small function per metric, and whatever a metric of your own needs.

        scores = lcprune.metrics.score(graph, "l2")                    # one array per group, in graph order
        scores = lcprune.metrics.score(graph, "taylor", data=batches)  # batches of (input, target)
        scores = lcprune.metrics.score(graph, lambda graph: [...])     # a function of your own
        lcprune.metrics.names()                                        # what there is; `lcprune.metrics()` too

    A metric of your own under a name, here or in another package (entry points in the group "lcprune.metrics"):

        @lcprune.metrics.register("largest", needs_data=False)
        def largest(graph):
            return lcprune.metrics.sum_filters(graph, lambda weight: weight.abs().amax(1))
    """

    Context = Context
    Metric = Metric
    get = staticmethod(get)
    l2_normalised = staticmethod(l2_normalised)
    names = staticmethod(names)
    register = staticmethod(register)
    score = staticmethod(score)
    sum_filters = staticmethod(sum_filters)
    sum_units = staticmethod(sum_units)

    def __call__(self) -> tuple[str, ...]:
        """Every metric that can be named, sorted."""
        return names()


metrics = Metrics()
