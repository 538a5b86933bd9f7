"""`lcprune inspect`: what a network is made of, what is coupled with what, and what cannot be pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.show import console, print_json, print_table
from lcprune.limit import format_count


def inspect(
    model: o.Model,
    data: o.Data = None,
    weights: o.Weights = None,
    num_classes: o.NumClasses = None,
    input_shape: o.InputShape = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also say why groups are coupled.")] = False,
    ignore: o.Ignore = None,
    json_: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show layers, groups, couplings and what cannot be pruned.

    Examples:

      lcprune inspect resnet56

      lcprune inspect torchvision:mobilenet_v2 --explain

      lcprune inspect my_net.py:build --input-shape 3x64x64 --json
    """
    from lcprune.cli.sources import open_data, open_network

    network = open_network(model, weights, num_classes, input_shape, open_data(data))
    graph = lcprune.trace(network.model, network.example, ignore=ignore or ())
    layers = layer_costs(graph)
    if json_:
        print_json(as_json(network.name, graph, layers))
        return
    out = console()
    out.print(f"[bold]{network.name}[/bold]  {format_count(graph.macs)} MACs, {format_count(graph.params)} parameters")
    cells = [[name, c["type"], format_count(c["macs"]), format_count(c["params"])] for name, c in layers.items()]
    print_table("Layers", ["layer", "type", "MACs", "parameters"], cells)
    out.print()
    print_table("Groups that can be pruned", ["group", "units", "filters of", "used by"], _group_cells(graph))
    if graph.frozen:
        out.print()
        print_table("What stays as it is", ["layer", "why"], [[n, why] for n, why in graph.frozen.items()])
    if graph.unread:
        out.print()
        out.print(f"Weights that the network never reads, left as they are: {', '.join(graph.unread)}", markup=False)
    if explain:
        out.print()
        out.print(graph.explain(), markup=False)


def layer_costs(graph: lcprune.ChannelGraph) -> dict[str, dict[str, Any]]:
    """MACs and parameters of every module that holds weights of its own, in network order."""
    macs = {layer.name: costs[1] for layer, costs in graph.cost.layers}
    return {
        name or "(network)": {"type": type(module).__name__, "macs": macs.get(name, 0), "params": own}
        for name, module in graph.model.named_modules()
        if (own := sum(parameter.numel() for parameter in module.parameters(recurse=False)))
    }


def as_json(name: str, graph: lcprune.ChannelGraph, layers: Mapping[str, Any]) -> dict[str, Any]:
    """Everything for machines."""
    groups = [
        {
            "name": group.name,
            "size": group.size,
            "members": [{"weight": m.weight, "dim": m.dim, "role": m.role} for m in group.members],
        }
        for group in graph.groups
    ]
    return {
        "model": name,
        "macs": int(graph.macs),
        "params": int(graph.params),
        "groups": groups,
        "frozen": dict(graph.frozen),
        "unread": list(graph.unread),
        "layers": dict(layers),
    }


def _group_cells(graph: lcprune.ChannelGraph) -> list[list[str]]:
    cells = []
    for group in graph.groups:
        made = dict.fromkeys(m.weight.rpartition(".")[0] for m in group.members if m.role == "out")
        used = dict.fromkeys(m.weight.rpartition(".")[0] for m in group.members if m.role == "in")
        cells.append([group.name, str(group.size), _few(list(made)), _few(list(used))])
    return cells


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
