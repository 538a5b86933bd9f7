"""`lcprune inspect`: what a network is made of, what is coupled with what, and what cannot be pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import lcprune
from lcprune.cli import options as o
from lcprune.cli.show import console, print_json, print_table
from lcprune.limit import format_count

if TYPE_CHECKING:
    from torch import nn


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
    layers = layer_costs(network.model, network.example)
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


def layer_costs(model: nn.Module, example: Any) -> dict[str, dict[str, Any]]:
    """MACs and parameters of every module that holds weights of its own, in network order."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lcprune.batches import call

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        call(model, example)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    layers = {}
    for name, module in model.named_modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if own:
            flops = sum(counts.get(f"{root}.{name}" if name else root, {}).values())
            is_leaf = next(module.children(), None) is None
            macs = flops // 2 if is_leaf else 0  # the example is one sample
            layers[name or "(network)"] = {"type": type(module).__name__, "macs": macs, "params": own}
    return layers


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


def _few(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
