"""docs/scale.md says what benchmarks/results/scale.json holds; the simulation obeys what holds for any times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import scale_simulation as scale
from scale_tables import renewed

from lcprune import Search

PAGE = (scale.RESULTS.parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
RECORD = json.loads((scale.RESULTS / "scale.json").read_text(encoding="utf-8"))
GIVEN = scale.Assumptions(
    seconds_per_candidate=1.0,
    source="made up",
    variation=0.0,
    lead_seconds=0.0,
    way_seconds=0.0,
    start_seconds=0.0,
    case_bytes=0.0,
    bandwidth=1.0,
    gpus_per_machine=8,
)


def test_the_page_holds_the_records() -> None:
    assert renewed(PAGE, RECORD) == PAGE


def test_the_records_follow_from_their_assumptions() -> None:
    assert scale.curve(scale.Assumptions(**RECORD["assumptions"]), Search()) == RECORD["simulated"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ideal_workers_divide_the_time(asynchronous) -> None:
    search = Search(pool=64, iterations=336)
    assert scale.simulate(1, search, GIVEN, asynchronous)["seconds"] == pytest.approx(400)
    assert scale.simulate(16, search, GIVEN, asynchronous)["seconds"] == pytest.approx(25)
    # A pool of 64 is one round for 256 workers; then 336 mutations are two.
    assert scale.simulate(256, search, GIVEN, asynchronous)["seconds"] == pytest.approx(3)


def test_waiting_for_the_slowest_costs_time_only_together() -> None:
    search, uneven = Search(pool=64, iterations=336), replace(GIVEN, variation=0.3)
    together, alone = (scale.simulate(16, search, uneven, asynchronous)["seconds"] for asynchronous in (False, True))
    assert alone < together and alone > 25 * 0.9


def test_the_leading_process_bounds_the_speed() -> None:
    slow = replace(GIVEN, lead_seconds=0.5)
    assert scale.simulate(256, Search(), slow, True)["seconds"] >= 200
