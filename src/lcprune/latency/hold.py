"""Holding a cut network to its latency: measure it, and select again while it is not near the limit."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import BudgetError
from lcprune.files import write_json
from lcprune.latency.clock import Clock
from lcprune.latency.limit import Kept, LatencyOutcome, parse_latency

if TYPE_CHECKING:
    from lcprune.plan import Plan

logger = logging.getLogger("lcprune")

HELD = "held.json"
ATTEMPTS = 4
_SLACK = 0.03  # of the limit: what may be left unused


def hold(
    clock: Clock,
    given: Any,
    kept: Kept,
    cut: Callable[[Kept], tuple[Plan, nn.Module]],
    again: Callable[[float], Kept | None],
    keep: Path | None = None,
    resume: bool = False,
) -> tuple[Plan, nn.Module, LatencyOutcome]:
    """Measure a cut network; while it misses the limit, or leaves much of it unused, select again, a few times at most.

    Args:
        clock: of the network before.
        given: the limit, as the user wrote it.
        kept: what was selected.
        cut: makes the plan and the smaller network.
        again: selects under another limit on the *predicted* latency, in milliseconds, without a new search; None if
            this method cannot.
        keep: where the answer is written down.
        resume: take it from there: measuring again might give another answer, and this network may have been tuned
            since.

    Returns:
        The plan that keeps most of those within the limit (the last one if there is none), its network, and what became
        of the limit.
    """
    number, absolute = parse_latency(given)
    selected = kept
    known = _recall(keep, given, selected) if resume and clock.backend is not None else None
    if known is not None:
        return *cut(known[0]), known[1]
    plan, smaller = cut(kept)
    predicted = float(clock.predict(_counts(kept)))
    if clock.backend is None:
        limit = number if absolute else number * clock.whole
        return plan, smaller, LatencyOutcome(limit, predicted, met=predicted <= limit * (1 + 1e-9), about=clock.about)
    attempts: list[dict[str, float]] = []
    best: tuple[Plan, nn.Module, Kept, dict[str, float]] | None = None
    missed = math.inf  # the least that was predicted for a network that missed the limit
    while True:
        original, measured = clock.measure(smaller)
        limit = number if absolute else number * original
        now = {"predicted_ms": predicted, "measured_ms": measured, "original_ms": original, "limit_ms": limit}
        attempts.append(now)
        met = measured <= limit
        if met and (best is None or predicted > best[-1]["predicted_ms"]):
            best = (plan, smaller, kept, now)
        missed = missed if met else min(missed, predicted)
        if len(attempts) == ATTEMPTS or (met and measured >= (1 - _SLACK) * limit):
            break
        wanted = min(predicted * limit / measured, 0.99 * missed)
        if best is not None and wanted < (1 + _SLACK) * best[-1]["predicted_ms"]:
            break
        logger.info("measured %.4g ms, and the limit is %.4g ms: selecting again", measured, limit)
        try:
            another = again(wanted)
        except BudgetError:  # nothing smaller can be had
            break
        if another is None or all(np.array_equal(a, b) for a, b in zip(another, kept, strict=True)):
            break
        kept = another
        plan, smaller = cut(kept)
        predicted = float(clock.predict(_counts(kept)))
    plan, smaller, kept, now = best or (plan, smaller, kept, now)
    outcome = LatencyOutcome(
        now["limit_ms"],
        now["predicted_ms"],
        now["measured_ms"],
        now["original_ms"],
        best is not None,
        tuple(attempts),
        clock.about,
    )
    (logger.info if outcome.met else logger.warning)("latency: %s", outcome)
    if keep is not None:
        stored = {"given": str(given), "selected": _plain(selected), "kept": _plain(kept), "latency": outcome.to_json()}
        write_json(keep, stored)
    return plan, smaller, outcome


def _recall(keep: Path | None, given: Any, selected: Kept) -> tuple[Kept, LatencyOutcome] | None:
    """What was kept of the same selection under the same limit, and what became of that."""
    if keep is None or not keep.is_file():
        return None
    stored = json.loads(keep.read_text(encoding="utf-8"))
    if (stored["given"], stored["selected"]) != (str(given), _plain(selected)):
        return None
    kept = [np.array(units, dtype=np.int64) for units in stored["kept"]]
    return kept, LatencyOutcome.from_json(stored["latency"])


def _plain(kept: Kept) -> list[list[int]]:
    return [np.asarray(units).tolist() for units in kept]


def _counts(kept: Kept) -> NDArray[np.int64]:
    return np.array([len(units) for units in kept], dtype=np.int64)
