"""How every command reads its settings and what it says when something goes wrong.

Settings come, each over the one before, from: the defaults, the folder of `--resume`, the file of
`--config`, `--set key=value`, and the options typed. Errors are one or two lines; exit codes are 0 done,
1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

import lcprune
from lcprune.errors import ConfigError, DataError, LcpruneError, MissingDependencyError, ModelError, first_line
from lcprune.files import parse_toml, read_toml
from lcprune.limit import Limit
from lcprune.runs import Interrupted, RunFolder

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

# Sections of a configuration file, beside the options of the command; those of methods have their names.
SECTIONS = ("search", "tune")

# What says how to run rather than what to run: not part of the resolved configuration.
PLUMBING = frozenset(
    {"config", "set_", "out", "resume", "force", "json_", "debug", "quiet", "report", "asynchronous", "dry_run"}
)

# Typer brings its own copy of click in some versions and uses the installed one in others.
ClickException: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class UsageError(LcpruneError):
    """What was typed makes no sense; exit code 2."""


@contextlib.contextmanager
def wrong_usage(where: str = "", *more: type[Exception]) -> Iterator[None]:
    """Inside, a name, file or folder that does not fit counts as wrong usage, and so do `more` errors."""
    wrong: tuple[type[Exception], ...] = (ModelError, DataError, ConfigError, MissingDependencyError, *more)
    try:
        yield
    except wrong as error:
        raise UsageError(f"{where}{error}") from error


def unknown_setting(name: str, known: Iterable[str], section: str = "") -> str:
    """What to say of a setting that does not exist."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {section + near[0]!r}?" if near else f"known are: {', '.join(known)}"
    return f"unknown setting {section + name!r}; {hint}"


class Command(TyperCommand):
    """A command whose options can also come from a file, and whose errors are short.

    The object of its context are the sections of its configuration: `[search]`, `[tune]`, and those of methods.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look the settings of files up first: to the parser they are defaults."""
        typed = self.make_parser(ctx).parse_args(args=list(args))[0]
        folder = next((parameter.default for parameter in self.params if parameter.name == "out"), None)
        try:
            values = _merged(str(ctx.info_name), {**typed, "out": typed.get("out") or folder})
            ctx.default_map, ctx.obj = _split(values, {str(p.name) for p in self.params} - PLUMBING)
        except LcpruneError as error:
            raise typer.BadParameter(str(error), ctx=ctx) from None
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what goes wrong into words and an exit code."""
        try:
            return super().invoke(ctx)
        except Interrupted as stop:
            _say(
                f"{ctx.command_path}: interrupted; what was done is in {stop.path}\n"
                f"go on with: {ctx.command_path} --out {stop.path} --resume"
            )
            raise typer.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            _say(f"{ctx.command_path}: interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (ClickException, typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            _say(f"{ctx.command_path}: {_in_words(error)}")
            raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else FAILED) from None


def settings(ctx: typer.Context) -> dict[str, Any]:
    """The resolved configuration: every option of the command that says what to run, and the sections."""
    options = {name: _plain(ctx.params[name]) for p in ctx.command.params if (name := str(p.name)) not in PLUMBING}
    return _given({**options, **{name: _given(values) for name, values in ctx.obj.items()}})


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Limit) else value


def _merged(command: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if typed.get("resume"):
        if not typed.get("out"):
            raise ConfigError("--resume needs --out FOLDER, the run to go on from")
        values.update(RunFolder.open(typed["out"], command).settings)
    if typed.get("config"):
        from_file = read_toml(typed["config"])
        made_by = from_file.pop("command", command)
        if made_by != command:
            raise ConfigError(f"{typed['config']} configures `lcprune {made_by}`, not `lcprune {command}`")
        _update(values, from_file)
    for assignment in typed.get("set_") or ():
        _update(values, parse_assignment(assignment))
    return values


def parse_assignment(text: str) -> dict[str, Any]:
    """`search.pool=32` as `{"search": {"pool": 32}}`; values are TOML, or else plain text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text}: write key=value, e.g. --set search.pool=32")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value
    section, dot, key = name.strip().partition(".")
    return {section: {key: parsed}} if dot else {section: parsed}


def _update(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        plain = name.replace("-", "_")
        if isinstance(value, Mapping):
            values[plain] = {**values.get(plain, {}), **{k.replace("-", "_"): v for k, v in value.items()}}
        else:
            values[plain] = value


def _split(values: Mapping[str, Any], known: set[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    options, found = {}, {}
    for name, value in values.items():
        if isinstance(value, Mapping) and (name in SECTIONS or name in lcprune.methods()):
            found[name] = dict(value)
        elif name in known and not isinstance(value, Mapping):
            # Lists are typed with commas.
            options[name] = ",".join(map(str, value)) if isinstance(value, list) else value
        else:
            raise ConfigError(unknown_setting(name, {*known, *SECTIONS}))
    return options, found


def _in_words(error: Exception) -> str:
    if isinstance(error, LcpruneError):
        return str(error)
    file, number = getattr(error, "filename", None), getattr(error, "errno", None)
    if number == errno.ENOSPC or "No space left on device" in str(error):  # as other libraries report it
        where = f" writing {file}" if file else ""
        return f"the disk is full{where}; what was finished before is kept: make room and go on with --resume"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {file}" if file else error.strerror
    return f"unexpected {type(error).__name__}: {first_line(error)}\nrun it again with --debug for the traceback"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
