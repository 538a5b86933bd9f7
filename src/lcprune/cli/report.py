"""`lcprune report`: one page from one or several run folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lcprune.cli import options as o
from lcprune.cli.command import wrong_usage
from lcprune.cli.show import print_json
from lcprune.runs import RunFolder


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or folders with a network.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; report.html in the (first) folder by default."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that lcprune did not make.")] = False,
    json_: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make one self-contained HTML page; with the extra `figures`, its figures as PNG and SVG beside it.

    Examples:

      lcprune report runs/prune

      lcprune report runs/uniform runs/naive runs/lcp --out comparison.html
    """
    from lcprune.report import write_report

    with wrong_usage():
        opened = [RunFolder.read(path) for path in runs]
        page = write_report(opened, out or opened[0].file("report.html"), title, force=force)
    for run in opened:
        if run.stopped:
            print(f"{run.path} is not finished: {run.stopped}", file=sys.stderr)
    if json_:
        print_json({"report": str(page), "figures": sorted(str(f) for f in (page.parent / "figures").glob("*.svg"))})
    else:
        print(page)
