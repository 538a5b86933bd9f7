"""The table of results in its four forms."""

from __future__ import annotations

import csv
import io
import statistics

from lcprune.report.records import collect, summarise
from lcprune.report.tables import csv_text, latex, markdown, result_table
from lcprune.summary import html_table


def test_seeds_are_averaged_with_their_standard_deviation(sample, tmp_path):
    rows = sample(tmp_path / "a", seeds=3).records("results")
    lcp = [row["accuracy"] for row in rows if row["network"] == "lcp 50%"]
    merged = next(row for row in summarise(rows) if row["network"] == "lcp 50%")
    assert merged["trials"] == 3
    assert merged["accuracy"] == statistics.fmean(lcp)
    assert abs(merged["accuracy_std"] - statistics.stdev(lcp)) < 1e-12
    header, cells = result_table(rows)
    line = next(line for line in cells if line[0] == "lcp 50%")
    expected = f"{100 * statistics.fmean(lcp):.2f} ± {100 * statistics.stdev(lcp):.2f}"
    assert line[header.index("tuned (%)")] == expected


def test_one_trial_has_no_deviation_and_empty_columns_vanish(sample, tmp_path):
    rows = sample(tmp_path / "a").records("results")
    header, cells = result_table([{k: v for k, v in row.items() if k != "latency_ms"} for row in rows])
    assert "latency (ms)" not in header and "trials" not in header
    assert not any("±" in cell for line in cells for cell in line)


def test_markdown_is_a_table(sample, tmp_path):
    text = markdown(*result_table(sample(tmp_path / "a").records("results")))
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) <= set("|-: ")
    assert len(lines) == 2 + 7


def test_csv_holds_every_trial_with_all_digits(sample, tmp_path):
    rows = sample(tmp_path / "a", seeds=2).records("results")
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [float(row["accuracy"]) for row in read] == [row["accuracy"] for row in rows]


def test_latex_escapes_what_latex_would_stumble_over():
    text = latex(["a_b", "c %"], [["x & y", "1 ± 2"]], caption="50 % of net_1")
    assert r"a\_b & c \%" in text and r"x \& y & 1 $\pm$ 2 \\" in text and r"\caption{50 \% of net\_1}" in text


def test_html_escapes_names():
    assert "<b>" not in html_table(["network"], [["<b>"]])


def test_rows_of_several_runs_stay_apart(sample, tmp_path):
    records = collect([sample(tmp_path / "a" / "run"), sample(tmp_path / "b" / "run")])
    assert {row["run"] for row in records.results} == {"a/run", "b/run"}
    assert len(summarise(records.results)) == 14
