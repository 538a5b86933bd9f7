"""The program `lcprune`: its commands, and the way out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from lcprune.cli import demo, export, look, prune, train
from lcprune.cli.command import FAILED, INTERRUPTED, ClickException, Command
from lcprune.version import VERSION

app = typer.Typer(
    name="lcprune",
    help="Make a trained PyTorch CNN smaller, by a stated amount, with the least loss.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Start with: lcprune demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order of the help.
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(demo.demo, look.inspect, prune.plan, train.train, prune.prune, prune.pareto, train.tune, train.evaluate),
    *(look.latency, export.export, export.report, prune.compare, look.methods),
)
for _function in _COMMANDS:
    app.command(cls=Command)(_function)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"lcprune {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on what was typed, or on `arguments`; returns the exit code."""
    command: Any = typer.main.get_command(app)
    try:
        words = None if arguments is None else list(arguments)
        code = command.main(args=words, prog_name="lcprune", standalone_mode=False)
    except ClickException as error:
        _explain(error)
        return int(getattr(error, "exit_code", FAILED))
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _explain(error: Any) -> None:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "lcprune"
    message = error.format_message()
    if not message:  # no arguments at all: the help is the message
        print(context.get_help() if context is not None else "")
        return
    print(f"{path}: {message}\ntry: {path} --help", file=sys.stderr)
