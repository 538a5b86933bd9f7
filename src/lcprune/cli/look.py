"""`lcprune inspect`, `latency` and `methods`: what there is to know before anything is pruned."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.command import UsageError
from lcprune.cli.show import console, listen, print_json, print_table
from lcprune.limit import format_count

BATCHES = o.Several((1, 4, 16, 64))


@o.also("data", *o.SOURCE, "ignore", "json_", "debug")
def inspect(
    ctx: typer.Context,
    model: o.Model,
    explain: Annotated[bool, typer.Option("--explain", help="Also list the tensors that each group cuts.")] = False,
) -> None:
    """Show layers, which of them are cut together, and what cannot be pruned.

    Examples:

      lcprune inspect resnet56

      lcprune inspect torchvision:mobilenet_v2 --explain

      lcprune inspect my_net.py:build --input-shape 3x64x64 --json
    """
    from lcprune.cli.sources import open_data, open_network

    given = ctx.params
    network = open_network(given, open_data(given))
    graph = lcprune.trace(network.model, network.example, ignore=given["ignore"] or ())
    macs = {layer.name: costs[1] for layer, costs in graph.cost.layers}
    layers = {
        name or "(network)": {"type": type(module).__name__, "macs": macs.get(name, 0), "params": own}
        for name, module in graph.model.named_modules()
        if (own := sum(parameter.numel() for parameter in module.parameters(recurse=False)))
    }
    if given["json_"]:
        groups = [{"name": group.name, "size": group.size, "members": _members(group)} for group in graph.groups]
        seen = {"model": network.name, "macs": int(graph.macs), "params": int(graph.params), "groups": groups}
        print_json({**seen, "frozen": dict(graph.frozen), "unread": list(graph.unread), "layers": layers})
        return
    out = console()
    out.print(f"[bold]{network.name}[/bold]  {format_count(graph.macs)} MACs, {format_count(graph.params)} parameters")
    cells = [[name, c["type"], format_count(c["macs"]), format_count(c["params"])] for name, c in layers.items()]
    print_table("Layers", ["layer", "type", "MACs", "parameters"], cells)
    out.print()
    cells = [[group.name, str(group.size), _few(group, "out"), _few(group, "in")] for group in graph.groups]
    print_table("Groups that can be pruned", ["group", "units", "filters of", "used by"], cells)
    if graph.frozen:
        out.print()
        print_table("What stays as it is", ["layer", "why"], [[n, why] for n, why in graph.frozen.items()])
    if graph.unread:
        out.print()
        out.print(f"Weights that the network never reads, left as they are: {', '.join(graph.unread)}", markup=False)
    if explain:
        out.print()
        out.print(graph.explain(), markup=False)


def _members(group: lcprune.Group) -> list[dict[str, Any]]:
    return [{key: getattr(member, key) for key in ("weight", "dim", "role")} for member in group.members]


def _few(group: lcprune.Group, role: str) -> str:
    """The first layers that make a group's channels, or read them."""
    names = list(dict.fromkeys(m.weight.rpartition(".")[0] for m in group.members if m.role == role))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@o.also("backend", *o.SOURCE, "device", "json_", "quiet", "debug")
def latency(
    ctx: typer.Context,
    networks: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Networks or run folders.")],
    batch_sizes: Annotated[o.Several, o.run_option("Batch sizes.", "N,N", parser=o.batch_sizes)] = BATCHES,
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

    given = ctx.params
    listen(given["quiet"])
    device = pick_device(given["device"])
    opened = [open_network({**given, "model": name}, device=device) for name in networks]
    if any(shape_of(network.example) != shape_of(opened[0].example) for network in opened):
        raise UsageError("these networks take different inputs: give one shape with --input-shape")
    records = measure(
        {network.name: network.model for network in opened},
        opened[0].example,
        batch_sizes,
        device=device,
        backend=given["backend"],
        progress=not given["quiet"],
    )
    if given["json_"]:
        print_json({"device": records[0].device, "latency": [asdict(record) for record in records]})
        return
    header = ["network", *[f"batch {size} (ms)" for size in batch_sizes]]
    cells = {network.name: [network.name] for network in opened}
    for record in records:
        cells[record.network].append("out of memory" if record.ms is None else f"{record.ms:.4g}")
    print_table(f"Milliseconds per image on {records[0].device}", header, list(cells.values()))


@o.also("json_", "debug")
def methods(ctx: typer.Context) -> None:
    """List methods, metrics, recipes and networks.

    Examples:

      lcprune methods

      lcprune methods --json
    """
    from lcprune import models
    from lcprune.tune import recipes

    found = {
        "methods": {name: lcprune.methods.get(name).summary for name in lcprune.methods.names()},
        "metrics": {name: lcprune.metrics.get(name).summary for name in lcprune.metrics.names()},
    }
    if ctx.params["json_"]:
        print_json({**found, "recipes": list(recipes()), "models": list(models.names())})
        return
    for kind, entries in found.items():
        print_table(kind.capitalize(), ["name", "what it does"], [[n, why] for n, why in entries.items()])
        print()
    print("Recipes:  " + ", ".join(recipes()))
    print("Networks: " + ", ".join(models.names()) + ", torchvision:NAME, timm:NAME, file.py:factory")
