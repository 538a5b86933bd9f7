"""Latency as a limit on the command line: what is said, what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import few_digits
import lcprune as library


def table() -> str:
    """Twice the MACs take twice as long."""
    graph = library.trace(library.models.build(few_digits.NET), library.models.example_input(few_digits.NET))
    points = [{"macs": share * graph.macs, "ms": 10 * share} for share in (0.01, 1)]
    Path("table.json").write_text(json.dumps({"device": "a board", "points": points}))
    return "table.json"


def test_a_measured_latency_is_recorded_and_gone_on_from(lcprune, trained, quick) -> None:
    # A limit that holds however busy the machine is.
    arguments = ("--latency", "60000ms", "--macs", "90%", "--batch", 8, "--method", "naive", "--no-report")
    said = lcprune("prune", trained, *arguments, "--out", "run", "--json", "--quiet", *quick)
    assert said.code == 0, said.err
    row = said.json["results"][-1]
    assert row["network"] == "naive 90 % and 60000 ms latency" and (row["resource"], row["limit"]) == ("macs", 0.9)
    assert row["latency_limit_ms"] == 60000 and row["latency_met"] is True and "latency_predicted_ms" not in row
    assert 0 < row["latency_ms"] < 60000 and row["latency_original_ms"] > 0
    plan = json.loads(Path("run/plan.json").read_text())
    assert plan["meta"]["latency"]["measured_ms"] == row["latency_ms"]
    (kept,) = Path("run").glob("networks/*/latency.json")
    assert json.loads(kept.read_text())["batch"] == 8 and kept.with_name("held.json").is_file()
    # The folder's own configuration can be gone on with.
    again = lcprune("prune", trained, "--out", "run", "--resume", "--json", "--quiet")
    assert again.code == 0 and again.json["results"][-1] == row, again.err


def test_points_from_another_device_are_a_limit(lcprune, trained, quick) -> None:
    arguments = ("--latency", "50%", "--latency-table", table(), "--method", "uniform", "--no-report")
    said = lcprune("prune", trained, *arguments, "--out", "run", "--quiet", *quick)
    assert said.code == 0 and "predicted (ms)" in said.out and "limit (ms)" in said.out, said.err
    row = json.loads(Path("run/records/results.json").read_text())[-1]
    assert row["network"] == "uniform 50 % latency" and (row["resource"], row["limit"]) == ("latency", 0.5)
    assert row["latency_limit_ms"] == pytest.approx(5.0) and row["latency_ms"] is None
    assert 4.5 < row["latency_predicted_ms"] <= 5.0 and row["latency_met"] is True


def test_a_frontier_of_latencies(lcprune, trained, quick) -> None:
    arguments = ("--latency", "80%,4ms", "--latency-table", table(), "--methods", "naive,lcp", "--no-report")
    said = lcprune("pareto", trained, *arguments, "--out", "run", "--json", "--quiet", *quick)
    assert said.code == 0, said.err
    rows = [row for row in said.json["results"] if row["method"] != "original"]
    assert [row["network"] for row in rows] == [f"{m} {s} latency" for m in ("naive", "lcp") for s in ("80 %", "4 ms")]
    assert all(row["latency_predicted_ms"] <= row["latency_limit_ms"] for row in rows)
    again = lcprune("pareto", trained, "--out", "run", "--resume", "--json", "--quiet")
    assert again.code == 0 and again.json["results"] == said.json["results"], again.err


def test_a_table_that_is_of_no_use_is_refused_before_anything_is_done(lcprune, trained) -> None:
    Path("table.json").write_text("{}")
    said = lcprune("prune", trained, "--method", "naive", "--latency", "50%", "--latency-table", "table.json")
    assert said.code == 2 and "table.json must hold two or more points" in said.err and not Path("runs").exists()
