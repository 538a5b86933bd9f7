"""Latency as a limit on the command line: what is typed, what is said, what is kept."""

from __future__ import annotations

import json

import pytest

from lcprune.cli.options import _latency
from lcprune.latency import Table, parse_latency


def test_prune_to_a_latency_says_limit_predicted_and_measured(lcprune, trained, quick, tmp_path) -> None:
    arguments = ("--latency", "90%", "--batch", 64, "--method", "naive", "--out", tmp_path / "run", "--no-report")
    said = lcprune("prune", trained, *arguments, "--json", "--quiet", *quick)
    assert said.code == 0, said.err
    row = said.json["results"][-1]
    assert row["network"] == "naive 90 % latency" and (row["resource"], row["limit"]) == ("latency_ms", 0.9)
    assert row["latency_limit_ms"] == pytest.approx(0.9 * row["latency_original_ms"])
    assert row["latency_met"] == (row["latency_ms"] <= row["latency_limit_ms"]) and row["latency_predicted_ms"] > 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["meta"]["latency"]["measured_ms"] == row["latency_ms"]
    kept = next((tmp_path / "run").glob("networks/*/latency.json"))
    assert Table.load(kept).batch == 64
    # The folder's own configuration can be gone on with.
    again = lcprune("prune", trained, "--out", tmp_path / "run", "--resume", "--json", "--quiet")
    assert again.code == 0 and again.json["results"][-1] == row, again.err


def test_a_table_is_written_and_used(lcprune, trained, quick, tmp_path) -> None:
    file = tmp_path / "table.json"
    said = lcprune("latency", trained, "--table", file, "--batch", 64, "--device", "cpu", "--quiet")
    assert said.code == 0 and "layer shapes, batch 64, eager" in said.out, said.err
    arguments = ("--latency", "90%", "--table", file, "--method", "uniform", "--no-report", "--multiple-of", "auto")
    used = lcprune("prune", trained, *arguments, "--out", tmp_path / "run", "--json", "--quiet", *quick)
    row = used.json["results"][-1]
    assert used.code == 0 and row["latency_ms"] is None
    assert row["latency_predicted_ms"] <= row["latency_limit_ms"]
    blank = lcprune("latency", trained, "--table", tmp_path / "blank.json", "--blank", "--device", "cpu", "--quiet")
    assert blank.code == 0
    refused = lcprune(
        "prune", trained, "--latency", "90%", "--table", tmp_path / "blank.json", "--method", "naive", "--quiet"
    )
    assert refused.code == 2 and 'has no "ms": it was not measured' in refused.err


def test_a_frontier_of_latencies(lcprune, trained, quick, tmp_path) -> None:
    arguments = ("--latency", "95%,90%", "--batch", 64, "--methods", "naive,lcp", "--no-report")
    said = lcprune("pareto", trained, *arguments, "--out", tmp_path / "run", "--json", "--quiet", *quick)
    assert said.code == 0, said.err
    rows = [row for row in said.json["results"] if row["method"] != "original"]
    assert [row["network"] for row in rows] == [f"{m} {s} % latency" for m in ("naive", "lcp") for s in (95, 90)]
    assert all(row["latency_ms"] and row["latency_limit_ms"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--latency", "quick"), "3.5ms"),
        (("--latency", "60%", "--backend", "tpu"), "choose one of eager"),
        (("--macs", "50%", "--multiple-of", "eight"), "auto"),
        (("--latency", "60%", "--table", "nowhere.json"), "nowhere.json cannot be read"),
    ],
)
def test_wrong_words_are_refused(lcprune, trained, arguments, message) -> None:
    said = lcprune("prune", trained, "--method", "naive", "--quiet", *arguments)
    assert said.code != 0 and message in said.err


def test_a_table_that_is_of_no_use_is_refused_before_anything_is_done(lcprune, trained, tmp_path) -> None:
    (tmp_path / "table.json").write_text("{}")
    arguments = ("prune", trained, "--method", "naive", "--out", tmp_path / "run", "--table", tmp_path / "table.json")
    said = lcprune(*arguments, "--macs", "50%")
    assert said.code == 2 and "--table is for --latency" in said.err
    said = lcprune(*arguments, "--latency", "50%")
    assert said.code == 2 and 'table.json: "format" must be' in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("typed", "kept"), [("0.00001ms", "1e-05ms"), ("1234567.5ms", "1234567.5ms"), ("60%", "60%")])
def test_a_latency_is_kept_as_it_can_be_read(typed, kept) -> None:
    assert _latency(typed) == kept and _latency(kept) == kept
    parse_latency(kept)
