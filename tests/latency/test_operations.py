"""Every operator that a network runs is known with its shape as a function of kept counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import lcprune
from lcprune.errors import LatencyError
from lcprune.latency.fusion import fuse
from lcprune.latency.operations import distinct, operations


class Shapes(TorchDispatchMode):
    """Shapes of the tensors that operators really get."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
        self.seen.append((str(func._schema.name), [tuple(tensor.shape) for tensor in tensors]))
        return func(*args, **(kwargs or {}))


def test_shapes_are_those_of_the_cut_network(trained, digits) -> None:
    graph = trained.graph
    rng = np.random.default_rng(3)
    for batch in (1, 3):
        found = operations(graph, batch)
        counts = np.array([rng.integers(1, size + 1) for size in graph.cost.sizes])
        smaller = graph.plan([np.arange(count) for count in counts]).apply(graph.model).eval()
        with torch.no_grad(), Shapes() as ran:
            smaller(digits.images[:batch])
        names = {one.name for one in found}
        # Of joined widths (a concatenation of three and more tensors) only the sum is known.
        real = [(name, shapes) for name, shapes in ran.seen if name in names]
        assert [name for name, _ in real] == [one.name for one in found]
        for one, (_, shapes) in zip(found, real, strict=True):
            widths = [axis.fixed + sum(counts[g] * times for g, times in axis.parts) for axis in one.axes]
            if all(float(length.times).is_integer() for shape in one.shapes for length in shape):
                assert one.shapes_at(widths) == shapes, one.key
            else:
                assert abs(sum(s[1] for s in one.shapes_at(widths)) - sum(s[1] for s in shapes)) <= len(shapes)


def test_layers_of_one_shape_are_one(residual_graph) -> None:
    found = operations(residual_graph)
    merged = distinct(found)
    assert len(merged) < len(found) and sum(one.count for one in merged) == len(found)


def test_compilers_join_what_follows_a_layer(residual_graph) -> None:
    found = operations(residual_graph)
    pointwise, activation = fuse(found, "pointwise"), fuse(found, "activation")
    assert fuse(found, "none") == found
    assert len(found) > len(pointwise) > len(activation)
    contractions = [one for one in found if one.kind == "contraction"]
    assert [one for one in activation if one.kind == "contraction"] == contractions
    # Sums cost a pass over the data, whoever joins what.
    sums = [one for one in found if one.name.startswith("aten::add") and one.kind == "pointwise"]
    assert sums and [one for one in activation if one.kind == "pointwise"] == sums
    with pytest.raises(LatencyError, match="fusion 'all' is not known"):
        fuse(found, "all")


@pytest.fixture(scope="module")
def residual_graph() -> Any:
    model = lcprune.models.build("resnet20")
    return lcprune.trace(model, lcprune.models.example_input("resnet20"))
