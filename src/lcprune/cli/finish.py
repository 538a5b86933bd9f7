"""The end of a long command: the report, and what the person is told."""

from __future__ import annotations

from typing import Any

from lcprune.cli.show import print_json, print_table
from lcprune.runs import RunFolder


def write_run_report(run: RunFolder, title: str | None = None) -> None:
    """Write `report.html` into the run's folder."""
    from lcprune.report import write_report

    write_report([run], run.file("report.html"), title)


def tell(run: RunFolder, json_: bool, title: str = "", **more: Any) -> None:
    """Print the results: a table, or JSON with `results` and the folder."""
    rows = run.records("results")
    if json_:
        print_json({"run": str(run.path), "results": rows, **more})
        return
    if rows:
        from lcprune.report.tables import result_table

        print_table(title, *result_table(rows))
    page = run.file("report.html")
    print(f"\nreport: {page}" if page.is_file() else f"\nrun folder: {run.path}")
