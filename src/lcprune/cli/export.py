"""`lcprune export` and `report`: networks for other programs, results for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lcprune.cli import options as o
from lcprune.cli.command import UsageError, wrong_usage
from lcprune.cli.show import console, print_json
from lcprune.limit import format_count
from lcprune.runs import RunFolder

_STEP = 8  # filters that ONNX Runtime computes together on many processors


@o.also(*o.SOURCE, "json_", "debug")
def export(
    ctx: typer.Context,
    model: o.Model,
    format: Annotated[str, typer.Option("--format", "-f", help="onnx, torch or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="File, or folder for safetensors.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a network as ONNX, torch.export file or safetensors; reload the file and compare.

    Examples:

      lcprune export runs/prune --format onnx

      lcprune export runs/prune --format torch --out smaller.pt2

      lcprune export torchvision:resnet18 --weights pretrained --out resnet18.onnx
    """
    from lcprune.cli.sources import open_network
    from lcprune.export import FORMATS
    from lcprune.export import export as write

    if format not in FORMATS:
        raise UsageError(f"--format {format}: choose one of {', '.join(FORMATS)}")
    network = open_network(ctx.params)
    stem = Path(model).name if network.run is not None else model.rpartition(":")[2]
    target = out or Path(f"{stem}{FORMATS[format] or '-export'}")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already: replace it with --force, or name another file with --out")
    if format != "safetensors" and target.is_dir():
        raise UsageError(f"{target} is a folder; name a file with --out")
    done = write(network.model, network.example, target, format, network.plan)
    if ctx.params["json_"]:
        print_json({"path": str(done.path), "format": format, "max_error": done.max_error, "bytes": done.bytes})
    else:
        size = format_count(done.bytes)
        console().print(f"{done.path}: {size}B, reloaded and compared: largest difference {done.max_error:.1e}")
        if format == "onnx" and network.plan is not None:
            channels = [layer["channels"] for layer in network.plan.layers.values()]
            widths = [after for before, after in channels if after < before]
            if odd := sum(width % _STEP > 0 for width in widths):
                words = (
                    f"{odd} of {len(widths)} cut layers have widths that are no multiple of {_STEP}: on processors this"
                )
                console().print(
                    f"{words} can cost ONNX Runtime more than the cut saves; prune with --multiple-of {_STEP}"
                )


@o.also("json_", "debug")
def report(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or folders with a network.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; report.html in the (first) folder by default."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that lcprune did not make.")] = False,
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
    if ctx.params["json_"]:
        print_json({"report": str(page), "figures": sorted(str(f) for f in (page.parent / "figures").glob("*.svg"))})
    else:
        print(page)
