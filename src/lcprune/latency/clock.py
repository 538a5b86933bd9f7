"""What knows a network's latency: a table or a function that predicts it, and what measures networks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import ConfigError, LatencyError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.backends import Backend, make_backend
from lcprune.latency.build import measure_networks, measure_table
from lcprune.latency.predict import Predictor
from lcprune.latency.steps import read_steps
from lcprune.latency.table import Table

logger = logging.getLogger("lcprune")

Predict = Callable[[NDArray[np.int64]], float]


@dataclass(frozen=True, eq=False)
class Clock:
    """What knows a network's latency.

    Attributes:
        graph: of the network before it was cut.
        predict: kept counts -> milliseconds.
        table: behind `predict`; None for a function of the user's.
        backend: what measures networks; None where that cannot be done here.
        batch: samples at a time.
        width: kept widths are multiples of this.
    """

    graph: ChannelGraph
    predict: Predict
    table: Table | None = None
    backend: Backend | None = None
    batch: int = 1
    width: int = 1

    @cached_property
    def whole(self) -> float:
        """Milliseconds of the whole network: measured with the table, or else predicted."""
        if self.table is not None and self.table.calibration:
            return float(self.table.calibration[0]["measured_ms"])
        return float(self.predict(self.graph.cost.sizes))

    def after(self, graph: ChannelGraph, kept: Mapping[str, Any]) -> Clock:
        """The same clock for a network that was cut before: groups of which one unit is left are no longer there.

        Args:
            graph: of the cut network.
            kept: what is left of each group of the first network.
        """
        names = self.graph.cost.names
        if names == graph.cost.names:
            return self
        present = np.array([names.index(name) for name in graph.cost.names], dtype=np.int64)
        left = np.array([len(kept[name]) for name in names], dtype=np.int64)

        def predict(counts: NDArray[np.int64]) -> float:
            every = left.copy()
            every[present] = counts
            return self.predict(every)

        later = replace(self, predict=predict)
        later.__dict__["whole"] = self.whole
        return later

    @property
    def about(self) -> dict[str, Any]:
        """Device, backend, batch and precision, as far as they are known."""
        if self.table is None:
            return {}
        names = ("device", "backend", "batch", "precision")
        return {name: getattr(self.table, name) for name in names}

    def measure(self, smaller: nn.Module) -> tuple[float, float]:
        """Milliseconds of the original and of a cut network, in turns."""
        assert self.backend is not None
        networks = {"original": self.graph.model, "cut": smaller}
        found = measure_networks(self.backend, networks, self.graph.example_inputs, self.batch)
        return found["original"], found["cut"]


def make_clock(
    graph: ChannelGraph,
    latency: Predict | Table | str | os.PathLike[str] | None = None,
    *,
    batch: int = 1,
    backend: str = "eager",
    multiple_of: int | str | None = None,
    keep: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Clock:
    """What predicts and measures a network's latency.

    Args:
        graph: of the network.
        latency: a function from kept counts to milliseconds, a table or its file (measured elsewhere: nothing is
            measured here then); None measures one on this machine, or takes it from the cache.
        batch: samples at a time.
        backend: one of `BACKENDS`.
        multiple_of: of kept widths; "auto" reads the steps off the table, None is what suits the device.
        keep: where the table is saved beside a run.
        resume: read it from there.
        progress: show a bar.
    """
    width = multiple_of if multiple_of == "auto" else width_of(graph, multiple_of)
    if latency is not None and not isinstance(latency, (Table, str, os.PathLike)):
        if width == "auto":
            raise LatencyError('multiple_of="auto" reads a latency table; with a function of your own, say a number')
        return Clock(graph, latency, width=int(width))
    runner = None
    if latency is not None:
        table = latency if isinstance(latency, Table) else Table.load(latency)
        if batch not in (1, table.batch):
            raise LatencyError(
                f"batch={batch}, but the latency table was measured with batch {table.batch}: leave it out"
            )
    else:
        runner = make_backend(backend, next(graph.model.parameters()).device)
        kept = _kept(keep, runner, batch) if resume else None  # a search that goes on keeps the limit it began with
        if kept is not None:
            table = kept
        else:
            table = measure_table(graph, batch=batch, backend=runner, multiple_of=width, progress=progress)
    width = read_steps(table, graph) if width == "auto" else int(width)
    clock = Clock(graph, Predictor(table, graph, width), table, runner, table.batch, width)
    if keep is not None:
        table.save(keep)
    return clock


def clock_and_width(
    graph: ChannelGraph,
    limit: Any,
    latency: Predict | Table | str | os.PathLike[str] | None,
    multiple_of: int | str | None,
    folder: Path | None,
    **settings: Any,
) -> tuple[Clock | None, int]:
    """A clock, if a limit or the widths ask for one, and of what kept widths are multiples.

    Args:
        graph: of the network.
        limit: on the latency; None if there is none.
        latency: what predicts it, as for `make_clock`.
        multiple_of: likewise.
        folder: of the run, where the table is saved; None saves it nowhere.
        settings: `batch`, `backend`, `resume` and `progress`, as for `make_clock`.
    """
    if limit is None and multiple_of != "auto":
        return None, width_of(graph, multiple_of)
    keep = None if folder is None else folder / "latency.json"
    clock = make_clock(graph, latency, multiple_of=multiple_of, keep=keep, **settings)
    return clock, clock.width


def _kept(keep: Path | None, runner: Backend, batch: int) -> Table | None:
    """The table beside a run that goes on, if it is one of what is asked for now."""
    if keep is None or not keep.is_file():
        return None
    table = Table.load(keep)
    if (table.backend, table.batch) != (runner.name, batch):
        return None
    here = runner.describe()["device"]
    if table.device != here:
        logger.warning("latency is predicted for %s, where this run began, and measured on %s", table.device, here)
    return table


def width_of(graph: ChannelGraph, multiple_of: Any) -> int:
    """Of what kept widths are multiples: a whole number as given, or what suits the device if None.

    That is 8 on CUDA in half precision, whose matrix units want it, and 1 elsewhere.
    """
    if multiple_of is not None:
        if not isinstance(multiple_of, (int, np.integer)) or multiple_of < 1:
            raise ConfigError(f'multiple_of={multiple_of!r}: give a whole number from 1 on, e.g. 8, or "auto"')
        return int(multiple_of)
    weight = next(graph.model.parameters())
    return 8 if weight.device.type == "cuda" and weight.element_size() == 2 else 1
