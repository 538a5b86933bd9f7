"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lcprune.errors import LcpruneError
from lcprune.limit import LATENCY, Limit, parse_limits


class ManyLimits(tuple[Limit, ...]):
    """Several limits."""


class Words(tuple[str, ...]):
    """Several words."""


class Shape(tuple[int, ...]):
    """(channels, height, width), or whatever the network takes."""


class Numbers(tuple[int, ...]):
    """Several whole numbers."""


HALF_AND_QUARTER = ManyLimits(parse_limits(("50%", "25%")))
FRONTIER = ManyLimits(parse_limits(("20%", "30%", "50%", "70%")))
THREE_METHODS, BATCHES = Words(("uniform", "naive", "lcp")), Numbers((1, 4, 16, 64))


def _one(name: str) -> Callable[[Any], Limit]:
    """Reads a limit on `name`."""

    def read(text: Any) -> Limit:
        return _checked(Limit.parse, text, name)

    return read


def _many(name: str) -> Callable[[Any], ManyLimits]:
    """Reads several limits on `name`, with commas."""

    def read(text: Any) -> ManyLimits:
        if isinstance(text, ManyLimits):
            return text
        limits = ManyLimits(_checked(parse_limits, words(text), name))
        if len(set(limits)) < len(limits):
            raise typer.BadParameter(f"{text!r} names a limit twice")
        return limits

    return read


def words(text: Any) -> Words:
    if isinstance(text, Words):
        return text
    words = Words(word.strip() for word in str(text).split(",") if word.strip())
    if not words:
        raise typer.BadParameter("name at least one")
    return words


def _numbers(text: Any) -> Numbers:
    if isinstance(text, Numbers):
        return text
    parts = [part for part in str(text).split(",") if part.strip()]
    try:
        numbers = Numbers(int(part) for part in parts)
    except ValueError:
        numbers = Numbers()
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r}: write whole numbers from 1 up, e.g. 1,4,16,64")
    return numbers


def _shape(text: Any) -> Shape:
    if isinstance(text, Shape):
        return text
    try:
        shape = Shape(int(part) for part in str(text).lower().replace(",", "x").split("x"))
    except ValueError:
        shape = Shape()
    if not shape or min(shape) < 1:
        raise typer.BadParameter(f"{text!r} is not a shape; write it like 3x224x224, without the batch")
    return shape


def _checked(parse: Callable[..., Any], *given: Any) -> Any:
    try:
        return parse(*given)
    except LcpruneError as error:
        raise typer.BadParameter(str(error)) from None


def _backend(text: Any) -> str:
    from lcprune.latency.backends import check_backend

    return str(_checked(check_backend, text))


# Options by the part of the help that they are listed in.
run_option = partial(typer.Option, rich_help_panel="Run")
model_option = partial(typer.Option, rich_help_panel="Network and data")
limit_option = partial(typer.Option, rich_help_panel="Limits")
method_option = partial(typer.Option, rich_help_panel="Method")
machine_option = partial(typer.Option, rich_help_panel="More than one machine")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="resnet56, torchvision:resnet50, timm:mobilenetv2_100, file.py:factory, or a folder with a network.",
    ),
]
Data = Annotated[
    str | None,
    model_option(
        metavar="DATA", help="digits, cifar10:PATH, folder:PATH, cub200:PATH, imagenet:PATH or file.py:factory."
    ),
]
Loss = Annotated[
    str | None,
    model_option(
        metavar="FILE:FUNCTION", help="file.py:function of (output, target): the mean loss. Default: cross-entropy."
    ),
]
Score = Annotated[
    str | None,
    model_option(metavar="FILE:NAME", help="file.py:name: what compares networks. Default: accuracy, or your --loss."),
]
Weights = Annotated[
    str | None,
    model_option(
        metavar="FILE",
        help="safetensors, a state dict or a folder with a network; 'pretrained' for the published weights.",
    ),
]
NumClasses = Annotated[int | None, model_option(min=1, help="Outputs of the network; the data's by default.")]
InputShape = Annotated[
    Shape | None, model_option(parser=_shape, metavar="CxHxW", help="Input without the batch, e.g. 3x224x224.")
]
Macs = Annotated[Limit | None, limit_option(parser=_one("macs"), metavar="SIZE", help="Multiply-adds: 50% or 62.7M.")]
ManyMacs = Annotated[
    ManyLimits, limit_option(parser=_many("macs"), metavar="SIZES", help="Multiply-adds: 50%,25% or 62.7M,30M.")
]
OptionalManyMacs = Annotated[
    ManyLimits | None,
    limit_option(
        parser=_many("macs"), metavar="SIZES", help="Multiply-adds: 50%,25% or 62.7M,30M. [default: 20%,30%,50%,70%]"
    ),
]
Params = Annotated[Limit | None, limit_option(parser=_one("params"), metavar="SIZE", help="Parameters: 50% or 0.4M.")]
MinKeep = Annotated[float, limit_option(min=0.0, max=1.0, help="Share of each group that always stays.")]
MultipleOf = Annotated[
    int | None,
    limit_option(min=1, help="Keep widths a multiple of this. Default: 8 on CUDA in half precision, else 1."),
]
Ignore = Annotated[
    Words | None,
    limit_option(parser=words, metavar="NAMES", help="Layers that stay whole: names or patterns, separated by commas."),
]
DryRun = Annotated[bool, run_option("--dry-run", help="Show what would go, layer by layer; keep nothing.")]
Repair = Annotated[
    str,
    limit_option(
        help="How cut networks are repaired, without labels: auto, none, statistics, stand-ins, refit or distil."
    ),
]
Latency = Annotated[Limit | None, limit_option(parser=_one(LATENCY), metavar="TIME", help="Latency: 60% or 3.5ms.")]
ManyLatencies = Annotated[
    ManyLimits | None, limit_option(parser=_many(LATENCY), metavar="TIMES", help="Latency: 60%,40% or 3.5ms,2ms.")
]
Batch = Annotated[int, limit_option(min=1, help="Images at a time, for --latency.")]
Backend = Annotated[
    str,
    limit_option(
        parser=_backend,
        metavar="NAME",
        help="For --latency, what runs the network: eager, cudagraph, compile or onnx.",
    ),
]
LatencyTable = Annotated[
    str | None,
    limit_option(metavar="FILE", help="For --latency: JSON with times from another device, used instead of measuring."),
]
Method = Annotated[str, method_option(help="uniform, naive, lcp, ... (see `lcprune methods`).")]
Methods = Annotated[Words, method_option(parser=words, metavar="NAMES", help="Methods, separated by commas.")]
Metric = Annotated[str, method_option(help="auto (lcp: rebuilt; else: l2), l1, taylor, ... (see `lcprune methods`).")]
Epochs = Annotated[int | None, run_option(min=0, help="Epochs of training; the recipe's own by default.")]
Recipe = Annotated[str, run_option(help="Named training recipe.")]
Seed = Annotated[int, run_option(help="Seed of everything random.")]
Seeds = Annotated[int, run_option(min=1, help="How many trials, with seeds 0, 1, ...")]
BatchSizes = Annotated[Numbers, run_option(parser=_numbers, metavar="N,N", help="Batch sizes.")]
Report = Annotated[bool, run_option("--report/--no-report", help="Write report.html.")]
Device = Annotated[str, run_option(help="auto, cpu, cuda or cuda:N.")]

Engine = Annotated[str, machine_option(help="local, or ray: all machines, GPUs and cores of a Ray cluster.")]
Address = Annotated[
    str | None,
    machine_option(
        metavar="HOST:PORT", help="The Ray cluster, or auto. Default: the one on this machine, or a new one."
    ),
]
Workers = Annotated[int | None, machine_option(min=1, help="How many work at once. Default: one per GPU, or per core.")]
Asynchronous = Annotated[bool, machine_option("--asynchronous", help="No worker waits for another. Not reproducible.")]

Out = Annotated[str | None, run_option(metavar="FOLDER", help="The run folder; a new one in runs/ by default.")]
Resume = Annotated[bool, run_option("--resume", help="Go on from the folder of --out.")]
Force = Annotated[bool, run_option("--force", help="Replace the folder of --out.")]
Config = Annotated[Path | None, run_option(metavar="FILE", help="TOML file with any of these options.")]
Set = Annotated[list[str] | None, run_option("--set", metavar="KEY=VALUE", help="e.g. search.pool=32, tune.lr=0.02.")]
Json = Annotated[bool, run_option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, run_option("--quiet", "-q", help="No progress.")]
Debug = Annotated[bool, run_option("--debug", help="Show the traceback of an error.")]

# Options that several commands have and read from their context: name -> (type, default).
Group = Mapping[str, tuple[Any, Any]]
NETWORK: Group = {
    "data": (Data, None),
    "loss": (Loss, None),
    "score": (Score, None),
    "weights": (Weights, None),
    "num_classes": (NumClasses, None),
    "input_shape": (InputShape, None),
    "device": (Device, "auto"),
}
FOLDER: Group = {
    "out": (Out, None),
    "resume": (Resume, False),
    "force": (Force, False),
    "config": (Config, None),
    "set_": (Set, None),
    "report": (Report, True),
    "json_": (Json, False),
    "quiet": (Quiet, False),
    "debug": (Debug, False),
}
CHOICE: Group = {
    **NETWORK,
    "metric": (Metric, "auto"),
    "min_keep": (MinKeep, 0.10),
    "multiple_of": (MultipleOf, None),
    "ignore": (Ignore, None),
}
STUDY: Group = {
    **CHOICE,
    "repair": (Repair, "auto"),
    "recipe": (Recipe, "finetune"),
    "engine": (Engine, "local"),
    "address": (Address, None),
    "workers": (Workers, None),
    **FOLDER,
}


def also(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the command takes these options too, beside its own parameters."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: given[name] for name in own})

        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for group in groups
            for name, (kind, default) in group.items()
        ]
        everything = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own.values()), *more]
        run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
        return run

    return add
