"""Options that several commands have, each declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lcprune.errors import LcpruneError
from lcprune.limit import LATENCY, Limit, parse_limits


class Several(tuple[Any, ...]):
    """What was typed with commas, read. Of a plain tuple, Typer would make an option with several arguments."""


def several(read: Callable[[str], Sequence[Any]]) -> Callable[[Any], Several]:
    """Decorator: a parser of several values; a default has been read already."""
    return lambda given: given if isinstance(given, Several) else Several(read(str(given)))


@several
def words(text: str) -> list[str]:
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise typer.BadParameter("name at least one")
    return found


def limit(name: str) -> Callable[[Any], Limit]:
    """A parser of a limit on `name`."""
    return lambda given: _checked(Limit.parse, given, name)


def limits(name: str) -> Callable[[Any], Several]:
    """A parser of several limits on `name`."""

    @several
    def read(text: str) -> Sequence[Limit]:
        found: Sequence[Limit] = _checked(parse_limits, words(text), name)
        if len(set(found)) < len(found):
            raise typer.BadParameter(f"{text!r} names a limit twice")
        return found

    return read


@several
def batch_sizes(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part.strip()]
    return _whole_numbers(parts, f"{text!r}: write whole numbers from 1 up, e.g. 1,4,16,64")


@several
def _shape(text: str) -> list[int]:
    parts = text.lower().replace(",", "x").split("x")
    return _whole_numbers(parts, f"{text!r} is not a shape; write it like 3x224x224, without the batch")


def _whole_numbers(parts: Sequence[str], wrong: str) -> list[int]:
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(wrong)
    return numbers


def _backend(given: Any) -> str:
    from lcprune.latency.backends import check_backend

    return str(_checked(check_backend, given))


def _checked(parse: Callable[..., Any], *given: Any) -> Any:
    try:
        return parse(*given)
    except LcpruneError as error:
        raise typer.BadParameter(str(error)) from None


def option(panel: str, help: str, metavar: str | None = None, *flags: str, **more: Any) -> Any:
    """An option that the help lists in a panel."""
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel=panel, **more)


run_option = partial(option, "Run")
_network = partial(option, "Network and data")
limit_option = partial(option, "Limits")
method_option = partial(option, "Method")
_machine = partial(option, "More than one machine")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="resnet56, torchvision:resnet50, timm:mobilenetv2_100, file.py:factory, or a folder with a network.",
    ),
]
Macs = Annotated[Limit | None, limit_option("Multiply-adds: 50% or 62.7M.", "SIZE", parser=limit("macs"))]
Params = Annotated[Limit | None, limit_option("Parameters: 50% or 0.4M.", "SIZE", parser=limit("params"))]
Latency = Annotated[Limit | None, limit_option("Latency: 60% or 3.5ms.", "TIME", parser=limit(LATENCY))]
Method = Annotated[str, method_option("uniform, naive, lcp, ... (see `lcprune methods`).")]
Methods = Annotated[Several, method_option("Methods, separated by commas.", "NAMES", parser=words)]
Epochs = Annotated[int | None, run_option("Epochs of training; the recipe's own by default.", min=0)]
Recipe = Annotated[str, run_option("Training recipe (see `lcprune methods`).")]
Seed = Annotated[int, run_option("Seed of everything random.")]


def _shared(
    data: Annotated[
        str | None,
        _network("digits, cifar10:PATH, folder:PATH, cub200:PATH, imagenet:PATH or file.py:factory.", "DATA"),
    ] = None,
    loss: Annotated[
        str | None,
        _network("file.py:function of (output, target): the mean loss. Default: cross-entropy.", "FILE:FUNCTION"),
    ] = None,
    score: Annotated[
        str | None, _network("file.py:name: what compares networks. Default: accuracy, or your --loss.", "FILE:NAME")
    ] = None,
    weights: Annotated[
        str | None,
        _network(
            "safetensors, a state dict or a folder with a network; 'pretrained' for the published weights.", "FILE"
        ),
    ] = None,
    num_classes: Annotated[int | None, _network("Outputs of the network; the data's by default.", min=1)] = None,
    input_shape: Annotated[
        Several | None, _network("Input without the batch, e.g. 3x224x224.", "CxHxW", parser=_shape)
    ] = None,
    device: Annotated[str, run_option("auto, cpu, cuda or cuda:N.")] = "auto",
    batch: Annotated[int, limit_option("Images at a time, for --latency.", min=1)] = 1,
    backend: Annotated[
        str,
        limit_option(
            "What runs networks when they are timed: eager, cudagraph, compile or onnx.", "NAME", parser=_backend
        ),
    ] = "eager",
    latency_table: Annotated[
        str | None,
        limit_option("For --latency: JSON with times from another device, used instead of measuring.", "FILE"),
    ] = None,
    metric: Annotated[
        str, method_option("auto (lcp without tuning: rebuilt; else: l2), l1, taylor, ... (see `lcprune methods`).")
    ] = "auto",
    min_keep: Annotated[
        float, limit_option("Share of each layer's channels that always stays.", min=0.0, max=1.0)
    ] = 0.10,
    multiple_of: Annotated[
        int | None,
        limit_option("Keep widths a multiple of this. Default: 8 on CUDA in half precision, else 1.", min=1),
    ] = None,
    ignore: Annotated[
        Several | None,
        limit_option("Layers that stay whole: names or patterns, separated by commas.", "NAMES", parser=words),
    ] = None,
    repair: Annotated[
        str,
        method_option(
            "How cut networks are repaired, without labels: auto, none, statistics, stand-ins, refit or distil."
        ),
    ] = "auto",
    recipe: Recipe = "finetune",
    seed: Seed = 0,
    engine: Annotated[str, _machine("local, or ray: all machines, GPUs and cores of a Ray cluster.")] = "local",
    address: Annotated[
        str | None,
        _machine("The Ray cluster, or auto. Default: the one on this machine, or a new one.", "HOST:PORT"),
    ] = None,
    workers: Annotated[int | None, _machine("How many work at once. Default: one per GPU, or per core.", min=1)] = None,
    asynchronous: Annotated[
        bool, _machine("No worker waits for another. Not reproducible.", None, "--asynchronous")
    ] = False,
    out: Annotated[str | None, run_option("The run folder; without a name, a new one in runs/.", "FOLDER")] = None,
    resume: Annotated[bool, run_option("Go on from the folder of --out.", None, "--resume")] = False,
    force: Annotated[bool, run_option("Replace the folder of --out.", None, "--force")] = False,
    config: Annotated[Path | None, run_option("TOML file with any of these options.", "FILE")] = None,
    set_: Annotated[
        list[str] | None, run_option("A single setting, e.g. search.pool=32, tune.lr=0.02.", "KEY=VALUE", "--set")
    ] = None,
    report: Annotated[bool, run_option("Write report.html.", None, "--report/--no-report")] = True,
    json_: Annotated[bool, run_option("Print JSON for machines.", None, "--json")] = False,
    quiet: Annotated[bool, run_option("No progress.", None, "--quiet", "-q")] = False,
    debug: Annotated[bool, run_option("Show the traceback of an error.", None, "--debug")] = False,
) -> None:
    """Options that commands name in `also`, and read from their context."""


SHARED = inspect.signature(_shared, eval_str=True).parameters

TASK = ("data", "loss", "score")
SOURCE = ("weights", "num_classes", "input_shape")
NETWORK = (*TASK, *SOURCE, "device")
TIMED = ("batch", "backend", "latency_table")
CHOICE = (*NETWORK, "metric", "min_keep", "multiple_of", "ignore")
FOLDER = ("out", "resume", "force", "config", "set_", "report", "json_", "quiet", "debug")
STUDY = (*CHOICE, "repair", "recipe", "engine", "address", "workers", *FOLDER)


def also(*names: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the command takes these options of `_shared`, too, beside its own parameters."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: given[name] for name in own})

        shared = [SHARED[name].replace(default=defaults.get(name, SHARED[name].default)) for name in names]
        every = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*own.values(), *shared)]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return run

    return add
