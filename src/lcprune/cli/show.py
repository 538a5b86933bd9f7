"""What appears on the terminal, progress on stderr and results on stdout; and the report at the end of a run."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lcprune.runs import RunFolder

# 93.77, 93.77 ± 0.06, 62.7 M, 50 %, -, or nothing.
_NUMBER = re.compile(r"|-|out of memory|[-+\d.,e]+( ± [\d.]+)?( ?[kMGT%])?")

logger = logging.getLogger("lcprune")


def console() -> Console:
    """Where results go."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def listen(quiet: bool = False) -> None:
    """Let lcprune's log lines appear on stderr (the bars show the rest on a terminal)."""
    for handler in list(logger.handlers):
        if isinstance(handler, _Stderr):
            logger.removeHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if not quiet:
        logger.addHandler(_Stderr())


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Looked up each time, so that whoever redirects stderr gets the lines.
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        print(f"{prefix}{record.getMessage()}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False, default=_plain))


def print_table(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A table; columns of numbers stand to the right, text to the left."""
    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="dim", box=None)
    for i, name in enumerate(header):
        numeric = i > 0 and all(_NUMBER.fullmatch(line[i]) for line in cells)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for line in cells:
        table.add_row(*[Text(cell) for cell in line])
    out = console()
    if not sys.stdout.isatty():
        out.width = max(160, out.width)
    out.print(table)


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


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
