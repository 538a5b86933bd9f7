"""`lcprune export`: the network for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import console, print_json
from lcprune.limit import format_count


def export(
    model: o.Model,
    format: Annotated[str, typer.Option("--format", "-f", help="onnx, torch or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="File, or folder for safetensors.")] = None,
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json_: o.Json = False,
    debug: o.Debug = False,
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
    network = open_network(model, weights, num_classes, input_shape)
    stem = Path(model).name if network.run is not None else model.rpartition(":")[2]
    target = out or Path(f"{stem}{FORMATS[format] or '-export'}")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already: replace it with --force, or name another file with --out")
    if format != "safetensors" and target.is_dir():
        raise UsageError(f"{target} is a folder; name a file with --out")
    done = write(network.model, network.example, target, format, network.plan)
    if json_:
        print_json({"path": str(done.path), "format": format, "max_error": done.max_error, "bytes": done.bytes})
    else:
        size = format_count(done.bytes)
        console().print(f"{done.path}: {size}B, reloaded and compared: largest difference {done.max_error:.1e}")
