"""Cuts worked out on paper: which rows and columns stay, written down index by index."""

from __future__ import annotations

import torch
from selections import group_of
from torch import Tensor
from zoo import ZOO

import lcprune


def cut(name: str, layer: str, kept: list[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State dicts before and after keeping some units of a layer's group."""
    entry = ZOO[name]
    model = entry.factory()
    graph = lcprune.trace(model, entry.inputs())
    group = group_of(graph, layer)
    assert group is not None
    return model.state_dict(), graph.plan({group.name: kept}).apply(model).state_dict()


def test_plain_convolution() -> None:
    before, after = cut("PlainConv", "conv1", [1, 4, 5])
    assert torch.equal(after["conv1.weight"], before["conv1.weight"][[1, 4, 5]])
    assert torch.equal(after["conv1.bias"], before["conv1.bias"][[1, 4, 5]])
    assert torch.equal(after["bn1.running_var"], before["bn1.running_var"][[1, 4, 5]])
    assert torch.equal(after["conv2.weight"], before["conv2.weight"][:, [1, 4, 5]])
    assert torch.equal(after["fc.weight"], before["fc.weight"])


def test_channels_last_flatten_takes_every_sixth_column() -> None:
    before, after = cut("FlattenChannelsLast", "conv", [0, 4])
    columns = [position * 6 + channel for position in range(36) for channel in (0, 4)]
    assert torch.equal(after["fc.weight"], before["fc.weight"][:, columns])


def test_channels_first_flatten_takes_blocks_of_columns() -> None:
    before, after = cut("FlattenChannelsFirst", "conv", [2, 5])
    columns = [channel * 36 + position for channel in (2, 5) for position in range(36)]
    assert torch.equal(after["fc1.weight"], before["fc1.weight"][:, columns])


def test_rolled_channels_arrive_in_the_order_of_the_shorter_axis() -> None:
    # Channels 1, 2, 6, 7 stay; rolled by three they arrive as 2, 6, 7, 1. Channel c was read at (c + 3) % 8.
    before, after = cut("Roll", "conv", [1, 2, 6, 7])
    assert torch.equal(after["head.weight"], before["head.weight"][:, [5, 1, 2, 4]])


def test_rolled_riders_change_places_too() -> None:
    # Rolled by minus two: channels 0, 3, 4 arrive as 4, 0, 3. Channel c was at (c - 2) % 8.
    before, after = cut("RollBeforeNorm", "conv", [0, 3, 4])
    assert torch.equal(after["bn.weight"], before["bn.weight"][[2, 6, 1]])
    assert torch.equal(after["depthwise.weight"], before["depthwise.weight"][[2, 6, 1]])
    assert torch.equal(after["middle.weight"], before["middle.weight"][:, [2, 6, 1]])


def test_flipped_channels_arrive_reversed() -> None:
    before, after = cut("Flip", "conv", [0, 1, 6])
    assert torch.equal(after["bn.bias"], before["bn.bias"][[1, 6, 7]])
    assert torch.equal(after["head.weight"], before["head.weight"][:, [1, 6, 7]])


def test_pixel_shuffle_takes_four_filters_per_unit() -> None:
    before, after = cut("PixelShuffle", "conv", [1, 3])
    rows = [4, 5, 6, 7, 12, 13, 14, 15]
    assert torch.equal(after["conv.weight"], before["conv.weight"][rows])
    assert torch.equal(after["after.weight"], before["after.weight"][:, [1, 3]])


def test_interleaved_repeat_takes_neighbouring_columns() -> None:
    before, after = cut("RepeatInterleave", "conv", [0, 5])
    assert torch.equal(after["wide.weight"], before["wide.weight"][[0, 1, 10, 11]])
    assert torch.equal(after["head.weight"], before["head.weight"][:, [0, 1, 10, 11]])


def test_gate_takes_value_and_gate_together() -> None:
    before, after = cut("GatedLinearUnit", "conv", [2, 3])
    assert torch.equal(after["conv.weight"], before["conv.weight"][[2, 3, 8, 9]])
    assert torch.equal(after["bn.weight"], before["bn.weight"][[2, 3, 8, 9]])
    assert torch.equal(after["head.weight"], before["head.weight"][:, [2, 3]])


def test_depthwise_multiplier_takes_both_filters_of_a_channel() -> None:
    before, after = cut("DepthwiseMultiplier", "conv1", [0, 6])
    assert torch.equal(after["depthwise.weight"], before["depthwise.weight"][[0, 1, 12, 13]])
    assert torch.equal(after["head.weight"], before["head.weight"][:, [0, 1, 12, 13]])


def test_appended_zero_channels_shrink_with_their_filters() -> None:
    entry = ZOO["OptionAShortcut"]
    model = entry.factory()
    graph = lcprune.trace(model, entry.inputs())
    # Filters 6 to 11 of the last convolution meet zeros only: they are units of their own.
    kept = {}
    for group in graph.groups:
        rows = [m.index for m in group.members if m.role == "out" and m.weight == "block2.2.weight"]
        if rows and rows[0].min() >= 6:
            kept[group.name] = [0, 1, 2, 5]
    assert kept, "the appended channels should be a group"
    smaller = graph.plan(kept).apply(model)
    assert smaller.shortcut.pad == 4
    assert smaller.block2[2].out_channels == 10
