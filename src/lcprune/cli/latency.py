"""`lcprune latency`: how long networks take on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import listen, print_json, print_table


def latency(
    networks: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Networks or run folders.")],
    batch_sizes: o.BatchSizes = o.BATCHES,
    backend: o.Backend = "eager",
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    device: o.Device = "auto",
    json_: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Time per image at several batch sizes; several networks are measured in turns, in one run.

    Examples:

      lcprune latency resnet56

      lcprune latency runs/train runs/prune --batch-sizes 1,64

      lcprune latency torchvision:resnet50 --backend onnx
    """
    from lcprune.cli.sources import open_network, pick_device
    from lcprune.study import latency_rows

    listen(quiet)
    where = pick_device(device)
    opened = [open_network(name, weights, num_classes, input_shape, device=where) for name in networks]
    shapes = {tuple(network.example.shape[1:]) for network in opened}
    if len(shapes) > 1:
        raise UsageError("these networks take different inputs; say one shape with --input-shape")
    rows = latency_rows({n.name: n.model for n in opened}, opened[0].example, batch_sizes, not quiet, backend=backend)
    if json_:
        print_json({"device": rows[0]["device"], "latency": rows})
        return
    header = ["network", *[f"batch {size} (ms)" for size in batch_sizes]]
    cells = []
    for network in opened:
        own = {row["batch_size"]: row for row in rows if row["network"] == network.name}
        cells.append([network.name, *[_cell(own.get(size)) for size in batch_sizes]])
    print_table(f"Milliseconds per image on {rows[0]['device']}", header, cells)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return "out of memory" if row["ms"] is None else f"{row['ms']:.4g}"
