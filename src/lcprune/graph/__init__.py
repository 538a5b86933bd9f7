"""How the channels of a network depend on one another."""

from lcprune.graph.channel_graph import ChannelGraph, Group, Member
from lcprune.graph.tracing import trace

__all__ = ["ChannelGraph", "Group", "Member", "trace"]
