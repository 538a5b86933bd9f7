"""The comparison of all methods: options come from the validation split, and its page says what its record holds."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

import method_tables
import method_times
import methods as comparison
import pytest

import lcprune
from lcprune.cli import main


def test_every_method_that_can_be_compared_is() -> None:
    assert set(method_tables.ORDER) == set(lcprune.methods()) - {"schedule"}  # which has no schedule of its own
    assert set(method_tables.PUBLISHED) < set(method_tables.ORDER)


def test_the_page_says_what_the_records_hold() -> None:
    page = method_tables.PAGE.read_text(encoding="utf-8")
    assert method_tables.searches() in page
    results = json.loads(method_tables.RESULTS.read_text(encoding="utf-8"))
    if "grids" in results:
        assert method_tables.tables(results) in page
    else:  # made before options were chosen on the validation split
        assert "This table is older than the text" in page


def test_every_grid_is_as_large_as_the_others_and_can_be_run() -> None:
    assert {len(grid) for grid in [comparison.TUNING, *comparison.GRIDS.values()]} == {4}
    for method, grid in comparison.GRIDS.items():
        assert len({repr(lcprune.methods.make(method, options)) for options in grid}) == 4


def test_the_least_validation_loss_is_chosen() -> None:
    grid = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}, {"lr": 9.0}]
    rows = [{"loss": loss, "accuracy": 0.9, "search_seconds": 1.0} for loss in (0.3, 0.1, 0.1, None)]
    found = comparison.choose(grid, rows)
    assert found["chosen"] == {"lr": 0.2} and [one["loss"] for one in found["tried"]] == [0.3, 0.1, 0.1, None]
    with pytest.raises(lcprune.LcpruneError, match="every setting"):
        comparison.choose(grid[3:], rows[3:])


class Here(ThreadPoolExecutor):
    """Cells in this process; what a pool of processes is told besides their number does not matter here."""

    def __init__(self, jobs: int, *_: object) -> None:
        super().__init__(jobs)


@pytest.mark.slow
def test_rounds_that_choose_see_no_test_image_and_a_stopped_run_goes_on(tmp_path, monkeypatch, capfd) -> None:
    words = ["train", "digits_resnet", "--data", "digits", "--epochs", "1", "--device", "cpu", "--quiet", "--no-report"]
    assert main([*words, "--out", str(tmp_path / "cells" / "train")]) == 0
    monkeypatch.setattr(comparison, "TUNING", [{"lr": 0.01, "batch_size": 256}])
    short = [{"epochs": 1, "batch_size": batch} for batch in (256, 512)]
    monkeypatch.setattr(comparison, "GRIDS", {"soft": short})
    page = tmp_path / "page.md"
    page.write_text(f"before\n{method_tables.START}{method_tables.END}\nafter\n")
    options = argparse.Namespace(
        out=tmp_path / "cells",
        methods=["uniform", "soft"],
        epochs=1,
        seeds=1,
        jobs=2,
        results=tmp_path / "results.json",
        page=page,
    )
    comparison.digits(options)
    results = json.loads(options.results.read_text())
    images = results["images"]
    for one in [*results["tuning"]["tried"], *results["grids"]["soft"]["tried"]]:
        assert float(one["accuracy"] * images["val"]) == pytest.approx(round(one["accuracy"] * images["val"]))
    rows = {row["method"]: row for row in results["rows"]}
    assert set(rows) == {"original", "uniform", "soft"}
    assert all(
        row["accuracy"] * images["test"] == pytest.approx(round(row["accuracy"] * images["test"]))
        for row in rows.values()
    )
    assert rows["soft"]["options"] == results["grids"]["soft"]["chosen"]
    assert method_tables.tables(results) in page.read_text() and page.read_text().startswith("before")
    # Finished cells are not made again.
    cells = {path: path.stat().st_mtime_ns for path in options.out.glob("cells/*/records/results.json")}
    options.jobs = 1
    monkeypatch.setattr(comparison, "ProcessPoolExecutor", Here)
    comparison.digits(options)
    assert {path: path.stat().st_mtime_ns for path in cells} == cells and len(cells) == 5
    assert json.loads(options.results.read_text())["rows"] == results["rows"]
    # A cell is the same in this process, whatever runs beside it.
    alone = comparison.Cell("alone", options.out, "uniform", 0, 1, {"lr": 0.01, "batch_size": 256}, test=True)
    assert comparison.compute(alone)["loss"] == rows["uniform"]["loss"]
    capfd.readouterr()


def test_searches_are_timed_with_the_same_candidates(tmp_path, capsys) -> None:
    file = tmp_path / "times.json"
    options = argparse.Namespace(
        device="cpu", network="digits_resnet", weights=None, data="digits", images=64, candidates=8, out=file
    )
    method_times.searches(options)
    results = json.loads(file.read_text())
    for method in ("lcp", "amc"):
        made = results[method]
        assert 1 < made["evaluations"] <= 9 and made["found"]["macs_share"] <= 0.5
        assert sum(value for name, value in made["parts"].items() if name != "total") <= made["seconds"]
    assert results["ratio"] == results["amc"]["seconds"] / results["lcp"]["seconds"]
    assert "times as long as LcP" in capsys.readouterr().out
