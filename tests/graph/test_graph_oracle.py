"""The oracle itself, on cuts made by hand: it must see a wrong one and pass a right one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle import silenced_outputs, worst_difference
from torch import Tensor, nn
from zoo import ZOO


def stub_graph(weight: str, size: int, per_unit: int = 1) -> SimpleNamespace:
    """A graph with one group of which only the producing rows are known."""
    index = np.arange(size * per_unit).reshape(size, per_unit)
    member = SimpleNamespace(weight=weight, dim=0, role="out", index=index)
    return SimpleNamespace(groups=(SimpleNamespace(name="group", size=size, members=(member,)),))


def sliced(name: str, cuts: dict[str, tuple[int, list[int]]]) -> nn.Module:
    """A zoo network whose tensors are cut as written: name -> (dimension, positions)."""
    model = ZOO[name].factory()
    for key, (dim, positions) in cuts.items():
        owner, _, leaf = key.rpartition(".")
        module = model.get_submodule(owner)
        tensor = getattr(module, leaf).detach().index_select(dim, torch.tensor(positions))
        if leaf in module._buffers:
            setattr(module, leaf, tensor)
        else:
            setattr(module, leaf, nn.Parameter(tensor))
    return model


@pytest.mark.parametrize(("columns", "right"), [([5, 1, 2, 4], True), ([1, 2, 4, 5], False)])
def test_oracle_tells_the_order_of_rolled_channels(columns: list[int], right: bool) -> None:
    entry = ZOO["Roll"]
    kept = [1, 2, 6, 7]
    smaller = sliced("Roll", {"conv.weight": (0, kept), "conv.bias": (0, kept), "head.weight": (1, columns)})
    model, inputs = entry.factory(), entry.inputs()
    expected = silenced_outputs(model, inputs, stub_graph("conv.weight", 8), {"group": kept})
    assert (worst_difference(smaller(*inputs), expected) < 1e-5) is right


def test_oracle_follows_flattened_channels_through_a_sigmoid() -> None:
    entry = ZOO["FlattenChannelsFirst"]
    columns = [channel * 36 + position for channel in (2, 5) for position in range(36)]
    smaller = sliced(
        "FlattenChannelsFirst",
        {"conv.weight": (0, [2, 5]), "conv.bias": (0, [2, 5]), "fc1.weight": (1, columns)},
    )
    model, inputs = entry.factory(), entry.inputs()
    expected = silenced_outputs(model, inputs, stub_graph("conv.weight", 6), {"group": [2, 5]})
    assert worst_difference(smaller(*inputs), expected) < 1e-5


def test_oracle_silences_nothing_when_everything_is_kept() -> None:
    for name in ("SqueezeExciteLinear", "Depthwise", "CalledTwice", "Transposed2d"):
        entry = ZOO[name]
        model, inputs = entry.factory(), entry.inputs()
        assert worst_difference(model(*inputs), silenced_outputs(model, inputs, SimpleNamespace(groups=()), {})) == 0.0


def test_oracle_silences_a_channel_in_all_images_where_one_of_them_is_filled() -> None:
    class Filled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            x[0] = 0.1
            return torch.einsum("bchw,oc->bohw", x, matrix)

    matrix, model, x = torch.randn(5, 4), Filled(3, 4, 1), torch.randn(2, 3, 4, 4)
    expected = silenced_outputs(model, (x,), stub_graph("weight", 4), {"group": [0, 1, 2]})
    matrix[:, 3] = 0
    with torch.no_grad():
        assert worst_difference(model(x), expected) < 1e-5
