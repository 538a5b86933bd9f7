"""`lcprune latency`: how long networks take on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import listen, print_json, print_table

if TYPE_CHECKING:
    from lcprune.latency import LatencyRecord


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
    from lcprune.batches import shape_of
    from lcprune.cli.sources import open_network, pick_device
    from lcprune.latency import measure

    listen(quiet)
    where = pick_device(device)
    opened = [open_network(name, weights, num_classes, input_shape, device=where) for name in networks]
    if any(shape_of(network.example) != shape_of(opened[0].example) for network in opened):
        raise UsageError("these networks take different inputs: give one shape with --input-shape")
    records = measure(
        {network.name: network.model for network in opened},
        opened[0].example,
        batch_sizes,
        device=where,
        backend=backend,
        progress=not quiet,
    )
    if json_:
        print_json({"device": records[0].device, "latency": [asdict(record) for record in records]})
        return
    header = ["network", *[f"batch {size} (ms)" for size in batch_sizes]]
    cells = [
        [network.name, *[_cell(record) for record in records if record.network == network.name]] for network in opened
    ]
    print_table(f"Milliseconds per image on {records[0].device}", header, cells)


def _cell(record: LatencyRecord) -> str:
    return "out of memory" if record.ms is None else f"{record.ms:.4g}"
