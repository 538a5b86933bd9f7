"""Every error that lcprune raises on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LcpruneError(Exception):
    """Root of the errors raised on purpose; the message says what was wrong and what to do."""


class TraceError(LcpruneError):
    """The network's channels could not be followed."""


class PlanError(LcpruneError):
    """A plan does not fit the network, or its file is damaged.

    Attributes:
        result: what had been found, where a cut network failed its proof: a `PruneResult` or a `Frontier`. None
            elsewhere.
    """

    result: Any = None


class BudgetError(LcpruneError):
    """A limit cannot be met; the message names the smallest cost that can."""


class SearchError(LcpruneError):
    """A search was set up wrongly, or its records do not belong to it."""


class MetricError(LcpruneError):
    """A metric is unknown, lacks its data, or gave scores that cannot be ranked."""


class ModelError(LcpruneError):
    """A network could not be built or its weights do not fit."""


class DataError(LcpruneError):
    """A data set is missing, damaged or of the wrong shape."""


class TuneError(LcpruneError):
    """Training or fine-tuning cannot start or go on."""


class LatencyError(LcpruneError):
    """A latency could not be measured or predicted."""


class ExportError(LcpruneError):
    """An exported network could not be written or does not compute what it should."""


class ConfigError(LcpruneError):
    """A run's configuration is wrong, or its folder holds something else."""


class EngineError(LcpruneError):
    """Workers on other machines could not be reached, or died again and again."""


class MissingDependencyError(LcpruneError):
    """An optional part of lcprune needs a package that is not installed."""


def need_whole(name: str, value: Any, least: int) -> None:
    """Refuse a setting that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SearchError(f"{name}={value!r} must be a whole number of at least {least}")


def need_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse a setting that is none of `allowed`."""
    if value not in allowed:
        raise SearchError(f"{name}={value!r} is not known; choose one of {', '.join(map(repr, allowed))}")


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in one line that is not too long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
