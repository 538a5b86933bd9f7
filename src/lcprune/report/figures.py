"""All figures of the report, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from lcprune.report.accuracy import before_after, frontier_macs, frontier_params, training
from lcprune.report.figure import Figure
from lcprune.report.insides import latency, metric, schedule, search
from lcprune.report.records import Records

_FIGURES: tuple[Callable[[Records], Figure | None], ...] = (
    frontier_macs,
    frontier_params,
    before_after,
    schedule,
    search,
    metric,
    latency,
    training,
)


def make_figures(records: Records) -> list[Figure]:
    """Every figure for which there are records, in the order of the page."""
    made = (draw(records) for draw in _FIGURES)
    return [figure for figure in made if figure is not None]
