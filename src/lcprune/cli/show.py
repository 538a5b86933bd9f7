"""What appears on the terminal, progress on stderr and results on stdout; and the report at the end of a run."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lcprune.cli.command import settings, wrong_usage
from lcprune.runs import PLAN, RunFolder, default_folder

if TYPE_CHECKING:
    from lcprune.plan import Plan

# 93.77, 93.77 ± 0.06, 62.7 M, 50 %, -, or nothing.
_NUMBER = re.compile(r"|-|out of memory|[-+\d.,e]+( ± [\d.]+)?( ?[kMGT%])?")

_TEXT = 20  # columns that a column of text needs at least

logger = logging.getLogger("lcprune")


def console() -> Console:
    """Where results go."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def listen(quiet: bool = False) -> None:
    """Let lcprune's log lines appear on stderr (the bars show the rest on a terminal)."""
    logger.handlers[:] = [handler for handler in logger.handlers if not isinstance(handler, _Stderr)]
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
    print(
        json.dumps(value, indent=2, allow_nan=False, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
    )


def print_table(title: str, header: Sequence[str], cells: Sequence[Sequence[str]], width: int | None = None) -> None:
    """A table; columns of numbers stand to the right, text to the left.

    What is too wide for the terminal (or `width`) becomes several tables that all have the first column.
    """
    out = console()
    numeric = [i > 0 and all(_NUMBER.fullmatch(line[i]) for line in cells) for i in range(len(header))]
    numbers = sum(2 + _longest(header, cells, i) for i in range(len(header)) if i == 0 or numeric[i])
    out.width = width or (out.width if sys.stdout.isatty() else max(160, out.width, numbers + _TEXT))
    names, blocks = list(header), _blocks(header, cells, numeric, out.width)
    if len(blocks) > 1:  # units below what they are the units of
        names = [name.replace(" (", "\n(") for name in header]
        blocks = _blocks(names, cells, numeric, out.width)
    for number, block in enumerate(blocks):
        shown = title if title and number == 0 else None
        table = Table(title=shown, title_justify="left", title_style="bold", header_style="dim", box=None)
        for i in block:
            justify: Any = "right" if numeric[i] else "left"
            short = i == 0 and _longest(names, cells, 0) <= out.width // 2
            table.add_column(names[i], justify=justify, no_wrap=numeric[i] or short, overflow="fold")
        for line in cells:
            table.add_row(*[Text(line[i]) for i in block])
        if number:
            out.print()
        out.print(table)


def _blocks(
    names: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool], width: int
) -> list[list[int]]:
    """The columns of each table, the first in all of them."""
    first = min(_longest(names, cells, 0), width // 2) + 2
    blocks, used = [[0]], first
    for i in range(1, len(names)):
        needed = 2 + (_longest(names, cells, i) if numeric[i] else min(_longest(names, cells, i), _TEXT))
        if used + needed > width and len(blocks[-1]) > 1:
            blocks, used = [*blocks, [0]], first
        blocks[-1].append(i)
        used += needed
    return blocks


def _longest(names: Sequence[str], cells: Sequence[Sequence[str]], column: int) -> int:
    return max(map(len, [*names[column].split("\n"), *(line[column] for line in cells)]))


def show_plan(plan: Plan, json_: bool) -> None:
    """Print what a plan takes from each layer."""
    if json_:
        names = ("macs", "params", "original_macs", "original_params", "layers", "frozen", "kept", "meta")
        print_json({name: getattr(plan, name) for name in names})
    else:
        print(plan.summary())


@contextlib.contextmanager
def open_run(ctx: typer.Context, subject: str, heading: str = "", title: str | None = None) -> Iterator[RunFolder]:
    """The run folder that `--out`, `--resume` and `--force` ask for; ends with the report and the results.

    Args:
        subject: what a new folder is named for.
        heading: of the results.
        title: of the report.
    """
    given, command = ctx.params, str(ctx.info_name)
    out, chosen = given["out"], settings(ctx)
    with wrong_usage():
        if given["resume"] and out is not None:
            run = RunFolder.resume(out, command, chosen)
        else:
            run = RunFolder.create(out or default_folder(command, subject), command, chosen, force=given["force"])
    with run:
        yield run
        if given["report"] and run.writes:
            from lcprune.report import write_report

            write_report([run], run.file("report.html"), title, force=True)
    if run.writes:
        _tell(run, given["json_"], heading)


def _tell(run: RunFolder, json_: bool, heading: str) -> None:
    """Print the results: a table, or JSON with `results` and the folder."""
    from lcprune.report.tables import result_table

    rows = run.records("results")
    if json_:
        print_json({"run": str(run.path), "results": rows})
        return
    if rows:
        print_table(heading, *result_table(rows))
    page = run.file("report.html")
    print(f"\nreport: {page}" if page.is_file() else f"\nrun folder: {run.path}")
    if run.file(PLAN).is_file():
        print(f"layer by layer: lcprune plan {run.path}")
