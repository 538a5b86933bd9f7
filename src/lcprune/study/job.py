"""One network that a study is asked for: how it is made, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcprune.latency import Latency
from lcprune.limit import Limit, network_name
from lcprune.runs import network_folder
from lcprune.search import Record

ORIGINAL = "original"


@dataclass(frozen=True, eq=False)
class NetworkJob:
    """One network to be made.

    Attributes:
        method: how, or "original" to judge the network as it is.
        limits: as for `lcprune.prune`.
        seed: of the trial.
        plan: what is kept, if that has been decided; the rest is to tune and judge.
        history: of the search that decided it.
        seconds: that this took.
    """

    method: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    plan: Any = None
    history: Sequence[Record] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The network's, in tables: `lcp 50 %`."""
        if self.method == ORIGINAL:
            return ORIGINAL
        return network_name(self.method, {name: _limit(name, limit) for name, limit in self.limits.items()})

    @property
    def title(self) -> str:
        """The name, with the seed where that is not the first."""
        return _title(self.name, self.seed)

    @property
    def folder(self) -> str:
        """The network's, in the run folder."""
        return network_folder(self.title)

    @property
    def resource(self) -> str:
        """What is limited, of several limits the first."""
        return next(iter(self.limits))

    @property
    def limit(self) -> float:
        """How much of it."""
        return _limit(self.resource, self.limits[self.resource]).number


def row_folder(row: Mapping[str, Any]) -> str:
    """Where the network of a row of results is, in the run folder."""
    return network_folder(_title(row["network"], row["seed"]))


def _title(name: str, seed: int) -> str:
    return name if seed == 0 else f"{name}, seed {seed}"


def _limit(resource: str, given: Any) -> Limit:
    return Limit.parse(given.limits[0] if isinstance(given, Latency) else given, resource)
