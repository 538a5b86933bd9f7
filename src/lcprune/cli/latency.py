"""`lcprune latency`: how long networks take on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from torch import Tensor, nn

from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.networks import open_network, pick_device
from lcprune.cli.show import listen, print_json, print_table
from lcprune.cli.study import Study
from lcprune.files import write_json


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
    listen(quiet)
    where = pick_device(device)
    opened = [open_network(name, weights, num_classes, input_shape, device=where) for name in networks]
    shapes = {tuple(network.example.shape[1:]) for network in opened}
    if len(shapes) > 1:
        raise UsageError("these networks take different inputs; say one shape with --input-shape")
    rows = measure({n.name: n.model for n in opened}, opened[0].example, batch_sizes, not quiet, backend=backend)
    if json_:
        print_json({"device": rows[0]["device"], "latency": rows})
        return
    header = ["network", *[f"batch {size} (ms)" for size in batch_sizes]]
    cells = []
    for network in opened:
        own = {row["batch_size"]: row for row in rows if row["network"] == network.name}
        cells.append([network.name, *[_cell(own.get(size)) for size in batch_sizes]])
    print_table(f"Milliseconds per image on {rows[0]['device']}", header, cells)


def measure(
    networks: Mapping[str, nn.Module],
    example: Tensor,
    batch_sizes: Sequence[int],
    progress: bool,
    rounds: int = 15,
    backend: str = "eager",
) -> list[dict[str, Any]]:
    """Milliseconds per image: a row per network and batch size, with the middle half of the measurements."""
    from lcprune.latency import measure as run

    records = run(
        networks, example, batch_sizes, device=example.device, backend=backend, rounds=rounds, progress=progress
    )
    return [
        {
            "network": record.model,
            "batch_size": record.batch_size,
            "device": record.device,
            "ms": record.ms_per_image,
            "low": record.low,
            "high": record.high,
            "error": record.error,
        }
        for record in records
    ]


def record_latency(study: Study, batch_sizes: Sequence[int], rounds: int = 15) -> None:
    """Measure every network of a study (the first trial of each) and record it; once."""
    if study.run.records("latency"):
        return
    results = study.run.records("results")
    first = {row["network"]: row for row in reversed(results)}
    chosen = {name: first[name] for name in dict.fromkeys(row["network"] for row in results)}
    networks = {name: study.model_of(row) for name, row in chosen.items()}
    measured = measure(networks, study.network.example, batch_sizes, study.progress, rounds)
    rows = [
        {**row, "method": chosen[row["network"]]["method"], "limit": chosen[row["network"]]["limit"]}
        for row in measured
    ]
    study.run.add("latency", *rows)
    single = {row["network"]: row["ms"] for row in rows if row["batch_size"] == batch_sizes[0]}
    for row in results:
        row["latency_ms"] = single.get(row["network"])
    write_json(study.run.file("records", "results.json"), results, indent=1)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return "out of memory" if row["ms"] is None else f"{row['ms']:.4g}"
