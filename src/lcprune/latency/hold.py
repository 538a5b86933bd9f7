"""Holding a cut network to its latency: measure it, and select again while it is not near the limit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from lcprune.errors import BudgetError
from lcprune.files import write_json
from lcprune.latency.clock import Clock
from lcprune.latency.limit import LatencyOutcome, Table
from lcprune.limit import Limit
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.plan import Plan

logger = logging.getLogger("lcprune")

HELD = "held.json"
ATTEMPTS = 8
_SLACK = 0.03  # of the limit: what may be left unused
_AIM = 1 - _SLACK / 2
_STEP = 0.02  # of its MACs: how much the next network differs, at least, while all are on one side of the limit
_LOOKS = 100  # for another network, at most
_NEAR = 0.005  # of its MACs: what is closer to a network than this is not measured


def hold(
    clock: Clock,
    limit: Limit,
    kept: Kept,
    cut: Callable[[Kept], tuple[Plan, nn.Module]],
    again: Callable[[float], Kept | None],
    keep: Path | None = None,
    resume: bool = False,
) -> tuple[Plan, nn.Module, LatencyOutcome]:
    """Measure a cut network; while it misses the limit, or leaves much of it unused, select again, a few times at most.

    Gives the plan that keeps most of those within the limit (the last one if there is none), its network, and what
    became of the limit.

    Args:
        cut: makes the plan and the smaller network.
        again: selects from the same ranking with at most so many MACs; None if this method cannot.
        keep: where the answer is written down.
        resume: take it from there: measured again, it might be another, and this network may have been tuned since.
    """
    if clock.backend is None:
        counts = np.array([len(units) for units in kept], dtype=np.int64)
        predicted, most = float(clock.predict(counts)), limit.of(clock.whole)
        about = {} if clock.table is None else clock.table.about
        met = predicted <= most * (1 + 1e-9)
        return *cut(kept), LatencyOutcome(most, predicted_ms=predicted, met=met, about=about)
    known = _recall(keep, limit, kept) if resume else None
    if known is not None:
        return *cut(known[0]), known[1]
    assert clock.table is not None
    selected = kept
    another: Kept | None = kept
    attempts: list[dict[str, float]] = []
    tried: list[Tried] = []
    best: tuple[Plan, nn.Module, Kept, dict[str, float]] | None = None
    while another is not None:
        if attempts:
            found = (attempts[-1][name] for name in ("measured_ms", "limit_ms"))
            logger.info("measured %.4g ms, and the limit is %.4g ms: selecting again", *found)
        kept = another
        plan, smaller = cut(kept)
        original, measured = clock.measure(smaller)
        most = limit.of(original)
        now = {"macs": float(plan.macs), "measured_ms": measured, "original_ms": original, "limit_ms": most}
        attempts.append(now)
        tried.append(Tried(now["macs"], measured / most))
        if tried[-1].ratio <= 1 and (best is None or plan.macs > best[0].macs):
            best = (plan, smaller, kept, now)
        last = kept if best is None else best[2]
        another = None if len(attempts) == ATTEMPTS else _another(tried, clock.table, again, last)
    plan, smaller, kept, now = best or (plan, smaller, kept, now)
    outcome = LatencyOutcome(
        now["limit_ms"],
        now["measured_ms"],
        now["original_ms"],
        met=best is not None,
        attempts=tuple(attempts),
        about=clock.table.about,
    )
    (logger.info if outcome.met else logger.warning)("latency: %s", outcome)
    if keep is not None:
        stored = {"limit": str(limit), "selected": _plain(selected), "kept": _plain(kept), "latency": outcome.to_json()}
        write_json(keep, stored)
    return plan, smaller, outcome


class Tried(NamedTuple):
    """A network that was measured."""

    macs: float
    ratio: float  # its latency as a share of the limit
    most: float = 0.0  # with at most so many MACs, this network is selected


def _another(tried: list[Tried], table: Table, again: Callable[[float], Kept | None], last: Kept) -> Kept | None:
    """The next network to be measured, other than `last`; None if there is none that is worth it."""
    for _ in range(_LOOKS):
        wanted = next_macs(tried, table)
        if wanted is None:
            return None
        try:
            kept = again(wanted)
        except BudgetError:  # nothing smaller can be had
            return None
        if kept is None or not _same(kept, last):
            return kept
        largest = _largest_within(tried)
        if largest is None:
            return None
        # Where widths are coarse, no network lies between this one and what was wanted: look further up.
        tried[tried.index(largest)] = largest._replace(most=wanted)
    return None


def next_macs(tried: Sequence[Tried], table: Table) -> float | None:
    """How many MACs the next network may have; None if none is worth measuring.

    Between the largest network within the limit and the smallest one above it, on the line through both; before there
    are both, along the table, scaled to the network that was measured.
    """
    within = _largest_within(tried)
    if within is not None and within.ratio >= 1 - _SLACK:
        return None
    larger = [one for one in tried if one.ratio > 1 and (within is None or one.macs > within.macs)]
    above = min(larger, default=None)
    if within is not None and above is not None:
        low = max(within.macs, within.most)
        if above.macs - low <= _NEAR * above.macs:
            return None
        part = (_AIM - within.ratio) / (above.ratio - within.ratio)
        return low + float(np.clip(part, 0.1, 0.9)) * (above.macs - low)
    one = within or above
    assert one is not None
    begin = max(one.macs, one.most)
    wanted = table.macs(table.ms(one.macs) * _AIM / one.ratio)
    wanted = max(wanted, (1 + _STEP) * begin) if within else min(wanted, (1 - _STEP) * begin)
    wanted = min(max(wanted, table.points[0][0]), table.points[-1][0])
    return None if abs(wanted - begin) <= _NEAR * begin else wanted


def _largest_within(tried: Sequence[Tried]) -> Tried | None:
    return max((one for one in tried if one.ratio <= 1), default=None)


def _same(one: Kept, other: Kept) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _recall(keep: Path | None, limit: Limit, selected: Kept) -> tuple[Kept, LatencyOutcome] | None:
    """What was kept of the same selection under the same limit, and what became of that."""
    if keep is None or not keep.is_file():
        return None
    stored = json.loads(keep.read_text(encoding="utf-8"))
    if (stored["limit"], stored["selected"]) != (str(limit), _plain(selected)):
        return None
    kept = [np.array(units, dtype=np.int64) for units in stored["kept"]]
    return kept, LatencyOutcome.from_json(stored["latency"])


def _plain(kept: Kept) -> list[list[int]]:
    return [np.asarray(units).tolist() for units in kept]
