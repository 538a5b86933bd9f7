"""`verify` must see a wrong network, whatever is wrong with it, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from selections import pruned, select, traced
from torch import nn
from zoo import ZOO

import lcprune


def _columns_swapped(model: nn.Module) -> None:
    model.block2[0].weight.copy_(model.block2[0].weight.flip(1))


def _rows_swapped(model: nn.Module) -> None:
    model.block1[0].weight.copy_(model.block1[0].weight.flip(0))


def _bias_forgotten(model: nn.Module) -> None:
    model.stem.bias.zero_()


def _statistics_of_other_channels(model: nn.Module) -> None:
    model.bn.running_mean.copy_(model.bn.running_mean.flip(0))


def _one_weight_nudged(model: nn.Module) -> None:
    model.fc.weight[0, 0] += 1e-3


@pytest.mark.parametrize(
    "damage",
    [_columns_swapped, _rows_swapped, _bias_forgotten, _statistics_of_other_channels, _one_weight_nudged],
)
def test_wrong_networks_are_seen(damage: Callable[[nn.Module], None]) -> None:
    model, inputs, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    wrong = plan.apply(model)
    assert lcprune.verify(model, plan, inputs, pruned=wrong).ok
    with torch.no_grad():
        damage(wrong)
    verification = lcprune.verify(model, plan, inputs, pruned=wrong)
    assert not verification.ok and not verification
    assert verification.max_error > 1e-6
    assert "WRONG" in str(verification)


def test_nan_is_not_agreement() -> None:
    model, inputs, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.fc.bias.fill_(float("nan"))
    assert not lcprune.verify(model, plan, inputs, pruned=wrong).ok


def test_wrong_networks_are_seen_behind_normalisation_over_channels() -> None:
    """Removal and silencing differ there by design; mistakes elsewhere must still show."""
    model, inputs, graph = traced("GroupNorm")
    plan = graph.plan(select(graph, "half"))
    verification = lcprune.verify(model, plan, inputs)
    assert verification.ok and verification.mixing
    wrong = plan.apply(model)
    with torch.no_grad():
        wrong.norm.bias.copy_(wrong.norm.bias.flip(0))
    assert not lcprune.verify(model, plan, inputs, pruned=wrong).ok


def test_plan_of_another_network_is_refused() -> None:
    _, plan, _ = pruned("PlainConv", "half")
    with pytest.raises(lcprune.PlanError):
        lcprune.verify(ZOO["Residual"].factory(), plan, ZOO["Residual"].inputs())


def test_loaded_plan_verifies(tmp_path: Path) -> None:
    model, inputs, _ = traced("OptionAShortcut")
    _, plan, _ = pruned("OptionAShortcut", "half")
    plan.save(tmp_path / "plan.json")
    assert lcprune.verify(model, lcprune.Plan.load(tmp_path / "plan.json"), inputs).ok


def test_says_which_modules_mix_channels() -> None:
    model, inputs, _ = traced("ConvNeXtBlock")
    _, plan, _ = pruned("ConvNeXtBlock", "half")
    verification = lcprune.verify(model, plan, inputs)
    assert verification.mixing == ("norm",)
    assert "mix" in str(verification)
