"""Layer-compensated pruning: physically smaller CNNs that meet a limit, checked to be what was meant.

```python
graph = lcprune.trace(model, example_inputs)
result = lcprune.prune(model, example_inputs, macs=0.5, data=batches)
result.model, result.plan
```
"""

import importlib
from typing import TYPE_CHECKING, Any

from lcprune.version import VERSION

if TYPE_CHECKING:
    from lcprune import baselines, data, engine, export, latency, models, report, tune
    from lcprune.choosing import LcP, Naive, Schedule, Uniform, methods
    from lcprune.cost import Cost
    from lcprune.engine import Job
    from lcprune.errors import (
        BudgetError,
        ConfigError,
        DataError,
        EngineError,
        ExportError,
        LatencyError,
        LcpruneError,
        MetricError,
        MissingDependencyError,
        ModelError,
        PlanError,
        SearchError,
        TraceError,
        TuneError,
    )
    from lcprune.evaluate import Evaluation
    from lcprune.framework import prune
    from lcprune.frontier import pareto
    from lcprune.graph import ChannelGraph, Group, Member, trace
    from lcprune.latency import Latency
    from lcprune.outcome import PruneResult
    from lcprune.plan import Plan
    from lcprune.repairs import Repair, repair
    from lcprune.score import Score
    from lcprune.scoring import metrics
    from lcprune.search import Search
    from lcprune.steps import prune_in_steps
    from lcprune.storage import load, save
    from lcprune.verification import Verification, verify

__version__ = VERSION

__all__ = ["baselines", "data", "engine", "export", "latency", "models", "report", "tune"]
__all__ += ["load", "methods", "metrics", "pareto", "prune", "prune_in_steps", "repair", "save", "trace", "verify"]
__all__ += ["Evaluation", "Job", "Latency", "LcP", "Naive", "Schedule", "Score", "Search", "Uniform"]
__all__ += ["ChannelGraph", "Cost", "Group", "Member", "Plan", "PruneResult", "Repair", "Verification"]
__all__ += ["BudgetError", "ConfigError", "DataError", "EngineError", "ExportError", "LatencyError", "LcpruneError"]
__all__ += [
    "MetricError",
    "MissingDependencyError",
    "ModelError",
    "PlanError",
    "SearchError",
    "TraceError",
    "TuneError",
]

# Where public names are that are neither modules nor errors. All are imported when they are first used: PyTorch takes
# seconds, and `lcprune --help` does not need it.
_ROOMS = {
    "choosing": ("LcP", "Naive", "Schedule", "Uniform", "methods"),
    "cost": ("Cost",),
    "engine": ("Job",),
    "evaluate": ("Evaluation",),
    "framework": ("prune",),
    "frontier": ("pareto",),
    "graph": ("ChannelGraph", "Group", "Member", "trace"),
    "latency": ("Latency",),
    "outcome": ("PruneResult",),
    "plan": ("Plan",),
    "repairs": ("Repair", "repair"),
    "score": ("Score",),
    "scoring": ("metrics",),
    "search": ("Search",),
    "steps": ("prune_in_steps",),
    "storage": ("load", "save"),
    "verification": ("Verification", "verify"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:  # for type checkers, names that are not imported above do not exist

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'lcprune' has no attribute {name!r}")
        if name in _HOMES or name.endswith("Error"):
            value = getattr(importlib.import_module(f"lcprune.{_HOMES.get(name, 'errors')}"), name)
        else:
            value = importlib.import_module(f"lcprune.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
