"""What a study measures, as rows of the records that reports are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lcprune.graph import ChannelGraph
from lcprune.score import ACCURACY, LOSS, Score
from lcprune.study.job import NetworkJob

Row = dict[str, Any]


def cost_row(graph: ChannelGraph, costs: Any) -> Row:
    """MACs and parameters of a graph or plan, also as shares of the whole network's."""
    macs, params = int(costs.macs), int(costs.params)
    return {
        "macs": macs,
        "params": params,
        "macs_share": macs / graph.macs,
        "params_share": params / graph.params,
    }


def plan_row(graph: ChannelGraph, job: NetworkJob) -> Row:
    """What is known of a cut network before it is judged."""
    row = {"network": job.name, "method": job.method, "resource": job.resource, "limit": job.limit, "seed": job.seed}
    row |= cost_row(graph, job.plan)
    row["search_seconds"] = round(job.seconds, 2)
    meta = job.plan.meta
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


def kept_rows(graph: ChannelGraph, job: NetworkJob) -> list[Row]:
    """How many units of each group a plan keeps."""
    return [
        {
            "network": job.name,
            "method": job.method,
            "limit": job.limit,
            "group": group.name,
            "position": position,
            "size": group.size,
            "kept": len(job.plan.kept.get(group.name, range(group.size))),
        }
        for position, group in enumerate(graph.groups)
    ]


def search_rows(job: NetworkJob) -> list[Row]:
    """The candidates of a search that could be judged."""
    # Only LcP's first candidate is naive pruning.
    first = job.history[0].difference if job.history and job.method == "lcp" else float("inf")
    return [
        {
            "network": job.name,
            "method": job.method,
            "limit": job.limit,
            "iteration": record.iteration,
            "difference": record.difference,
            "best": record.best,
            "naive": first if first < float("inf") else None,
        }
        for record in job.history
        if record.difference < float("inf")
    ]


def epoch_rows(name: str, history: Sequence[Mapping[str, Any]], score: Score = ACCURACY) -> list[Row]:
    """The epochs of a training: the loss in training, and the score on validation images."""
    key = f"val_{score.name}"
    return [
        {
            "network": name,
            "epoch": e["epoch"],
            "loss": e["train_loss"],
            key if score is LOSS else score.name: e.get(key),
        }
        for e in history
    ]
