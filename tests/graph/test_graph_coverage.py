"""Fourteen quick networks of the coverage benchmark, each with an idiom that breaks simpler tracers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from lcprune.errors import MissingDependencyError
from lcprune.vision import import_timm, import_torchvision

# Each with as few blocks as show its idiom.
NETWORKS: dict[str, dict[str, object]] = {
    "torchvision:resnet18": {},
    "torchvision:mobilenet_v2": {
        "inverted_residual_setting": [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2], [6, 96, 1, 1]]
    },
    "torchvision:mobilenet_v3_small": {},
    "torchvision:shufflenet_v2_x0_5": {},
    "torchvision:squeezenet1_1": {},
    "torchvision:regnet_y_400mf": {},
    "timm:fasternet_t0": {"depths": (1, 2, 1, 1)},
    "timm:starnet_s1": {"depths": (1, 2, 1, 1)},
    "timm:ecaresnet26t": {"layers": (2, 1, 1, 1)},
    "timm:res2net50_48w_2s": {"layers": (2, 1, 1, 1)},
    "timm:nf_resnet26": {"depths": (2, 1, 1, 1)},
    "timm:resnetblur18": {"layers": (2, 1, 1, 1)},
    "timm:rexnet_100": {"depth_mult": 0.5},
    "timm:convnext_atto": {"depths": (1, 2, 1, 1)},
}


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    return load("coverage_one")


def load(name: str) -> ModuleType:
    """A file of the benchmark, by path: the module called coverage is another one."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"lcprune_{name}", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_halved_run_and_verified(name: str, benchmark_module: ModuleType) -> None:
    try:
        import_timm() if name.startswith("timm:") else import_torchvision()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    record = benchmark_module.measure(name, "cnn", export_times=False, changes=NETWORKS[name])
    assert record["ok"], f"{record['stage']}: {record.get('error')}\n{record.get('traceback', '')}"
    assert record["reached"], f"only {record['macs_after']:.1%}; frozen: {record['reasons']}"
    # One unit of the random ranking is a small share of the network: the target is hit from just below.
    assert 0.45 < record["macs_after"] <= 0.5


def test_networks_of_a_library_that_is_not_installed_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = load("coverage")
    monkeypatch.setattr(benchmark, "MODELS", tmp_path / "models.txt")
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "coverage.json")
    monkeypatch.setattr(benchmark, "TABLE", tmp_path / "coverage.md")
    monkeypatch.setattr(sys, "argv", ["coverage.py"])
    benchmark.MODELS.write_text("nowhere:first cnn\nnowhere:second cnn\n")
    assert benchmark.main() == 0
    assert capsys.readouterr().out.splitlines()[0] == "skipped: nowhere is not installed"
    assert json.loads(benchmark.RESULTS.read_text())["records"] == []


@pytest.mark.parametrize("bias", [True, False])
def test_multiply_adds_are_those_of_layers(bias: bool, benchmark_module: ModuleType) -> None:
    """A linear layer on a transposed input is a batch of products; attention is none of the layers; an LSTM is one."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(6, 5, bias=bias)
            self.lstm = nn.LSTM(5, 7, bias=bias, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(self.conv(x).transpose(2, 3)).flatten(1, 2)
            y = self.lstm(y)[0]
            return (y[0] @ y[0].T) @ y[0] + y @ (y.transpose(1, 2) @ y)

    inputs = (torch.randn(1, 3, 8, 6),)
    steps = 4 * 4
    expected = 4 * 27 * 6 * 4 + steps * 6 * 5 + steps * 4 * 7 * (5 + 7)
    assert benchmark_module.counted_macs(Mixed().eval(), inputs) == expected
