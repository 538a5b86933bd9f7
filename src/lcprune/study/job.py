"""One network that a study is asked for, and its rows of the records that reports are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcprune.graph import ChannelGraph
from lcprune.latency import Latency
from lcprune.limit import Limit, network_name
from lcprune.runs import Row, network_folder
from lcprune.score import ACCURACY, LOSS, Score
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
    def tag(self) -> Row:
        """What its rows begin with."""
        limit = _limit(self.resource, self.limits[self.resource]).number
        return {"network": self.name, "method": self.method, "limit": limit}

    def plan_row(self, graph: ChannelGraph) -> Row:
        """What is known of a cut network before it is judged."""
        tag, meta = self.tag, self.plan.meta
        row = {"network": self.name, "method": self.method, "resource": self.resource, "limit": tag["limit"]}
        row |= {"seed": self.seed, **cost_row(graph, self.plan), "search_seconds": round(self.seconds, 2)}
        if "after" in meta:
            row["after"] = meta["after"]
        if "latency" in meta:
            latency = meta["latency"]
            row["latency_limit_ms"] = latency["limit_ms"]
            row["latency_ms"] = latency["measured_ms"]
            row["latency_original_ms"] = latency["original_ms"]
            row["latency_met"] = latency["met"]
            if latency["predicted_ms"] is not None:
                row["latency_predicted_ms"] = latency["predicted_ms"]
        return row

    def kept_rows(self, graph: ChannelGraph) -> list[Row]:
        """How many units of each group the plan keeps."""
        return [
            {
                **self.tag,
                "group": group.name,
                "position": position,
                "size": group.size,
                "kept": len(self.plan.kept.get(group.name, range(group.size))),
            }
            for position, group in enumerate(graph.groups)
        ]

    def search_rows(self) -> list[Row]:
        """The candidates of the search that could be judged."""
        # Only LcP's first candidate is naive pruning.
        first = self.history[0].difference if self.history and self.method == "lcp" else float("inf")
        return [
            {
                **self.tag,
                "iteration": record.iteration,
                "difference": record.difference,
                "best": record.best,
                "naive": first if first < float("inf") else None,
            }
            for record in self.history
            if record.difference < float("inf")
        ]


def row_folder(row: Mapping[str, Any]) -> str:
    """Where the network of a row of results is, in the run folder."""
    return network_folder(_title(row["network"], row["seed"]))


def cost_row(graph: ChannelGraph, costs: Any) -> Row:
    """MACs and parameters of a graph or plan, also as shares of the whole network's."""
    macs, params = int(costs.macs), int(costs.params)
    return {"macs": macs, "params": params, "macs_share": macs / graph.macs, "params_share": params / graph.params}


def epoch_rows(name: str, history: Sequence[Mapping[str, Any]], score: Score = ACCURACY) -> list[Row]:
    """The epochs of a training: the loss in training, and the score on validation images."""
    judged, key = f"val_{score.name}", "val_loss" if score is LOSS else score.name
    return [{"network": name, "epoch": e["epoch"], "loss": e["train_loss"], key: e.get(judged)} for e in history]


def _title(name: str, seed: int) -> str:
    return name if seed == 0 else f"{name}, seed {seed}"


def _limit(resource: str, given: Any) -> Limit:
    return Limit.parse(given.limits[0] if isinstance(given, Latency) else given, resource)
