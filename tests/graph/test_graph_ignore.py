"""`ignore=`: by module, by name, by pattern."""

from __future__ import annotations

from typing import Any

import pytest
from selections import group_of, select
from torch import nn
from zoo import ZOO

import lcprune


def trace_residual(ignore: Any) -> tuple[nn.Module, Any]:
    model = ZOO["Residual"].factory()
    if callable(ignore):
        ignore = ignore(model)
    return model, lcprune.trace(model, ZOO["Residual"].inputs(), ignore=ignore)


@pytest.mark.parametrize(
    "ignore",
    [
        ["block1.0"],
        ("block1.*",),
        ["block1"],
        lambda model: [model.block1[0]],
        lambda model: [model.block1],
    ],
    ids=["name", "pattern", "parent name", "module", "parent module"],
)
def test_ignored_layers_are_not_cut(ignore: Any) -> None:
    model, graph = trace_residual(ignore)
    assert group_of(graph, "block1.0") is None
    assert group_of(graph, "block2.0") is not None
    assert any(key.startswith("block1.0") for key in graph.frozen)
    plan = graph.plan(select(graph, "half"))
    smaller = plan.apply(model)
    assert smaller.block1[0].out_channels == 6
    assert lcprune.verify(model, plan, ZOO["Residual"].inputs()).ok


def test_what_is_coupled_with_an_ignored_layer_stays_too() -> None:
    _, graph = trace_residual(["stem"])
    assert group_of(graph, "stem") is None and group_of(graph, "block1.2") is None
    assert group_of(graph, "block1.0") is not None


def test_everything_can_be_ignored() -> None:
    _, graph = trace_residual(["*"])
    assert graph.groups == ()


@pytest.mark.parametrize(
    "ignore", [["blokc1.0"], ["nothing*"], [nn.Conv2d(1, 1, 1)]], ids=["name", "pattern", "module"]
)
def test_a_name_that_matches_nothing_is_an_error(ignore: Any) -> None:
    """A typing error must not silently prune the layer that was meant to stay."""
    with pytest.raises(lcprune.LcpruneError) as error:
        trace_residual(ignore)
    if isinstance(ignore[0], str):
        assert ignore[0] in str(error.value)


def test_a_single_name_is_not_a_list_of_letters() -> None:
    _, graph = trace_residual("block1.0")
    assert group_of(graph, "block1.0") is None and group_of(graph, "block2.0") is not None
