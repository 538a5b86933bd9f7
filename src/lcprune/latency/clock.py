"""What knows a network's latency: points measured here or elsewhere, or a function; and what measures networks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import LatencyError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.backends import Backend, device_name, make_backend
from lcprune.latency.limit import Latency, Predict, Table
from lcprune.latency.measure import measure_networks
from lcprune.limit import COUNT, LATENCY, Limit
from lcprune.select import Extra, Limits, Ranking

logger = logging.getLogger("lcprune")

TABLE = "latency.json"
_PLACES = (0.0, 1 / 3, 2 / 3)  # of the measured cuts: from the smallest network's MACs to the whole one's


@dataclass(frozen=True, eq=False)
class Clock:
    """What knows a network's latency."""

    graph: ChannelGraph  # of the network before it was cut
    predict: Predict  # kept counts -> milliseconds; where networks are measured, a stand-in for the search
    whole: float  # milliseconds of the whole network
    batch: int = 1  # samples at a time
    backend: Backend | None = None  # what measures networks; None where nothing is measured here
    table: Table | None = None  # milliseconds by MACs, behind `predict`; None for a function of the user's

    def extra(self, limit: Limit) -> dict[str, Extra]:
        """A limit on the latency, as `Limits` takes it."""
        return {LATENCY: Extra(self.predict, limit, self.whole)}

    def after(self, graph: ChannelGraph, kept: Mapping[str, Any]) -> Clock:
        """The same clock for a network of which `kept` is left: groups with one unit are no longer in its graph."""
        names = self.graph.cost.names
        if names == graph.cost.names:
            return self
        present = np.array([names.index(name) for name in graph.cost.names], dtype=np.int64)
        left = np.array([len(kept[name]) for name in names], dtype=np.int64)

        def predict(counts: NDArray[np.int64]) -> float:
            every = left.copy()
            every[present] = counts
            return self.predict(every)

        return replace(self, predict=predict)

    def measure(self, smaller: nn.Module) -> tuple[float, float]:
        """Milliseconds of the original and of a cut network, in turns."""
        assert self.backend is not None
        networks = {"original": self.graph.model, "cut": smaller}
        found = measure_networks(self.backend, networks, self.graph.example_inputs, self.batch)
        return found["original"], found["cut"]


def make_clock(
    graph: ChannelGraph,
    latency: Latency,
    min_keep: float = 0.10,
    multiple_of: int = 1,
    folder: Path | None = None,
    resume: bool = False,
) -> Clock:
    """What predicts and measures a network's latency, known as `latency` says; its limits do not matter here.

    Measured points are saved in `folder`. With `resume` they are read from there: a search that goes on keeps the limit
    it began with.
    """
    if callable(latency.table):
        return Clock(graph, latency.table, float(latency.table(graph.cost.sizes)), latency.batch)
    backend = None
    if latency.table is not None:
        table = Table.load(latency.table)
        _check(table, latency, graph)
    else:
        device = next(graph.model.parameters()).device
        backend = latency.backend if isinstance(latency.backend, Backend) else make_backend(latency.backend, device)
        about = {"device": device_name(backend.device), "backend": backend.name, "batch": latency.batch}
        keep = None if folder is None else folder / TABLE
        known = _recall(keep, about, graph) if resume else None
        table = known or Table.through(measure_cuts(graph, backend, latency.batch, min_keep, multiple_of), about)
        if keep is not None and known is None:
            table.save(keep)

    def predict(counts: NDArray[np.int64]) -> float:
        return table.ms(float(graph.cost.macs(counts)))

    return Clock(graph, predict, table.ms(graph.macs), latency.batch, backend, table)


def measure_cuts(
    graph: ChannelGraph, backend: Backend, batch: int, min_keep: float, multiple_of: int
) -> list[tuple[float, float]]:
    """(MACs, milliseconds) of the network, the smallest that can be cut from it and some between, measured in turns."""
    # Every layer's share is the same: which units stay does not matter to a clock.
    ranking = Ranking([np.zeros(size) for size in graph.cost.sizes], graph.cost, min_keep, multiple_of)
    smallest = float(graph.cost.macs(ranking.floors))
    networks, macs = {"whole": graph.model}, {"whole": float(graph.macs)}
    for place in _PLACES:
        name, most = f"{place:.2f}", smallest + place * (graph.macs - smallest)
        plan = graph.plan(ranking.uniform(Limits(macs=Limit(most, COUNT))))
        networks[name], macs[name] = plan.apply(graph.model), float(plan.macs)
    found = measure_networks(backend, networks, graph.example_inputs, batch)
    told = ", ".join(f"{100 * macs[name] / graph.macs:.0f} %: {ms:.4g} ms" for name, ms in found.items())
    logger.info("latency by MACs: %s", told)
    return [(macs[name], ms) for name, ms in found.items()]


def _recall(keep: Path | None, about: Mapping[str, Any], graph: ChannelGraph) -> Table | None:
    """The points of a run that goes on, if they are of what is asked for now."""
    if keep is None or not keep.is_file():
        return None
    table = Table.load(keep)
    same = all(table.about.get(name) == about[name] for name in ("backend", "batch"))
    if not same or table.points[-1][0] != graph.macs:
        return None
    if table.about.get("device") != about["device"]:
        logger.warning("this run began on %s, and goes on on %s", table.about.get("device"), about["device"])
    return table


def _check(table: Table, latency: Latency, graph: ChannelGraph) -> None:
    batch = table.about.get("batch", latency.batch)
    if latency.batch not in (1, batch):
        raise LatencyError(
            f"batch={latency.batch}, but the latency table was measured with batch {batch}: leave it out"
        )
    if table.points[-1][0] < 0.999 * graph.macs:
        raise LatencyError(
            f"the latency table ends at {table.points[-1][0]:g} MACs, and the network has {graph.macs:g}: it must "
            "have a point for the whole network"
        )
