"""A graph in words."""

from __future__ import annotations

from lcprune.graph.channel_graph import ChannelGraph, Group


def explain(graph: ChannelGraph) -> str:
    """Groups, couplings, and frozen parts with their reasons."""
    units = sum(group.size for group in graph.groups)
    lines = [
        f"{type(graph.model).__name__}: {graph.macs:,} MACs, {graph.params:,} parameters, "
        f"{len(graph.groups)} groups with {units:,} units that can go"
    ]
    for group in graph.groups:
        lines += _group(group, group.name in graph.mixing)
    if graph.frozen:
        lines.append("frozen:")
        lines += [f"  {name}: {reason}" for name, reason in graph.frozen.items()]
    if graph.unread:
        lines.append(f"never read, so left as they are: {', '.join(graph.unread)}")
    return "\n".join(lines)


def _group(group: Group, mixes: bool) -> list[str]:
    lines = [f"{group.name}: {group.size} units"]
    for role, verb in (("out", "filters of"), ("along", "along with"), ("in", "read by")):
        members = []
        for member in group.members:
            if member.role == role:
                times = member.index.shape[1]
                many = f" ({times} each)" if times > 1 else ""
                members.append(f"{member.weight}[{member.dim}]{many}")
        if members:
            lines.append(f"  {verb} {', '.join(members)}")
    if mixes:
        lines.append("  its channels influence one another (normalisation over channels): zeroing is not removing")
    return lines
