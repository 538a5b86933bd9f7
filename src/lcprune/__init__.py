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

__all__ = [
    "BudgetError",
    "ChannelGraph",
    "ConfigError",
    "Cost",
    "DataError",
    "EngineError",
    "Evaluation",
    "ExportError",
    "Group",
    "Job",
    "Latency",
    "LatencyError",
    "LcP",
    "LcpruneError",
    "Member",
    "MetricError",
    "MissingDependencyError",
    "ModelError",
    "Naive",
    "Plan",
    "PlanError",
    "PruneResult",
    "Repair",
    "Schedule",
    "Score",
    "Search",
    "SearchError",
    "TraceError",
    "TuneError",
    "Uniform",
    "Verification",
    "baselines",
    "data",
    "engine",
    "export",
    "latency",
    "load",
    "methods",
    "metrics",
    "models",
    "pareto",
    "prune",
    "prune_in_steps",
    "repair",
    "report",
    "save",
    "trace",
    "tune",
    "verify",
]

# Where public names are that are neither modules nor errors. All are imported when they are first used: PyTorch takes
# seconds, and `lcprune --help` does not need it.
_HOMES = {
    "ChannelGraph": "graph",
    "Cost": "cost",
    "Evaluation": "evaluate",
    "Group": "graph",
    "Job": "engine",
    "Latency": "latency",
    "LcP": "choosing",
    "Member": "graph",
    "Naive": "choosing",
    "Plan": "plan",
    "PruneResult": "outcome",
    "Repair": "repairs",
    "Schedule": "choosing",
    "Score": "score",
    "Search": "search",
    "Uniform": "choosing",
    "Verification": "verification",
    "load": "storage",
    "methods": "choosing",
    "metrics": "scoring",
    "pareto": "frontier",
    "prune": "framework",
    "prune_in_steps": "steps",
    "repair": "repairs",
    "save": "storage",
    "trace": "graph",
    "verify": "verification",
}


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
