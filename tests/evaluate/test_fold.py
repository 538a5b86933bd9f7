"""Folding batch norm: found where it is safe, never elsewhere, and the same function afterwards."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import lcprune
from lcprune.evaluate.fold import checked_pairs, find_pairs, fold_
from lcprune.vision import import_timm


def lively(model: nn.Module) -> nn.Module:
    """Batch norms with statistics and scales that matter."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.3, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -2, 2)
                nn.init.uniform_(module.bias, -1, 1)
    return model.eval()


def test_folding_changes_no_output(trained, digits) -> None:
    model = lively(copy.deepcopy(trained.model))
    pairs = find_pairs(lcprune.trace(model, digits.example))
    expected = {"plain": 6, "residual": 15, "separable": 17, "dense": 0}
    assert len(pairs) == expected[trained.name]
    folded = copy.deepcopy(model)
    fold_(folded, pairs)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) == sum(
        isinstance(module, nn.BatchNorm2d) for module in model.modules()
    ) - len(pairs)
    with torch.no_grad():
        assert torch.allclose(folded(digits.images[:50]), model(digits.images[:50]), rtol=1e-4, atol=1e-4)


def test_finding_leaves_the_network_as_it_was(plain, digits) -> None:
    model = copy.deepcopy(plain.model).train()
    model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    find_pairs(lcprune.trace(model, digits.example))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())


class Case(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(3, affine=kind != "plain norm", track_running_stats=kind != "batch statistics")
        self.other = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if self.kind == "read twice":
            return self.bn(y) + y
        if self.kind == "two norms":
            return self.bn(y) + self.other(y)
        if self.kind == "conv twice":
            return self.bn(self.conv(y))
        if self.kind == "norm twice":
            return self.bn(self.bn(y))
        if self.kind == "changed in place":
            y.mul_(2)
            return self.bn(y)
        if self.kind == "shape only":
            return self.bn(y).view(y.shape[0], y.size(1), -1)
        return self.bn(y)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("simple", 1),
        ("plain norm", 1),
        ("shape only", 1),
        ("read twice", 0),
        ("two norms", 0),
        ("conv twice", 0),
        ("norm twice", 0),
        ("changed in place", 0),
        ("batch statistics", 0),
    ],
)
def test_only_what_is_safe_is_folded(kind, count) -> None:
    for _ in range(5):  # tensors come and go: what is found must not depend on where they lay
        model = lively(Case(kind)) if kind != "batch statistics" else Case(kind).eval()
        x = torch.randn(4, 3, 5, 5)
        pairs = find_pairs(lcprune.trace(model, x))
        assert len(pairs) == count
        folded = copy.deepcopy(model)
        fold_(folded, pairs)
        assert torch.allclose(folded(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_mistaken_pair_is_caught_by_numbers(monkeypatch, plain, digits) -> None:
    from lcprune.evaluate import fold

    monkeypatch.setattr(fold, "find_pairs", lambda graph: [("0.0", "1.1")])
    assert checked_pairs(lcprune.trace(plain.model, digits.example), digits.images[:4]) == []


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_timm_norm_with_activation_keeps_the_activation() -> None:
    model = lively(import_timm().create_model("mobilenetv2_035", num_classes=4))
    x = torch.randn(2, 3, 64, 64)
    pairs = find_pairs(lcprune.trace(model, x))
    assert len(pairs) == 52
    folded = copy.deepcopy(model)
    fold_(folded, pairs)
    assert checked_pairs(lcprune.trace(model, x), x) == pairs
