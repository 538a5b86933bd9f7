"""Layer-compensated pruning: physically smaller CNNs that meet a limit, and the proof that they are what was meant.

graph = lcprune.trace(model, example_inputs)
result = lcprune.prune(model, example_inputs, macs=0.5, data=batches)
result.model, result.plan
"""

from lcprune import baselines, data, latency, methods, metrics, models, tune
from lcprune.cost import Cost
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
from lcprune.framework import prune
from lcprune.graph import ChannelGraph, Group, Member, trace
from lcprune.latency import Latency
from lcprune.outcome import PruneResult
from lcprune.pareto import pareto
from lcprune.plan import Plan
from lcprune.search import Search
from lcprune.storage import load, save
from lcprune.verification import Verification, verify

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "ChannelGraph",
    "ConfigError",
    "Cost",
    "DataError",
    "EngineError",
    "ExportError",
    "Group",
    "Latency",
    "LatencyError",
    "LcpruneError",
    "Member",
    "MetricError",
    "MissingDependencyError",
    "ModelError",
    "Plan",
    "PlanError",
    "PruneResult",
    "Search",
    "SearchError",
    "TraceError",
    "TuneError",
    "Verification",
    "baselines",
    "data",
    "latency",
    "load",
    "methods",
    "metrics",
    "models",
    "pareto",
    "prune",
    "save",
    "trace",
    "tune",
    "verify",
]
