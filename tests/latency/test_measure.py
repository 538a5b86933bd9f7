"""Latencies are measured side by side, and running out of memory is a cell, not a crash."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import Tensor, nn

from lcprune import latency
from lcprune.errors import LatencyError


class Sleeper(nn.Module):
    """Takes a known time per batch and notes when it ran."""

    def __init__(self, name: str, seconds: float, calls: list[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.name, self.seconds, self.calls = name, seconds, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.name)
        time.sleep(self.seconds)
        return x + self.weight


class Glutton(nn.Module):
    """Runs out of memory above a batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_empty(10**16) if len(x) > 4 else x


def test_a_slower_network_is_slower_and_figures_are_per_image() -> None:
    calls: list[str] = []
    models = {"slow": Sleeper("slow", 0.008, calls), "fast": Sleeper("fast", 0.002, calls)}
    records = latency.measure(models, torch.zeros(1, 3), (1, 4), rounds=5, seconds=0.001, progress=False)
    assert [(r.model, r.batch_size) for r in records] == [("slow", 1), ("fast", 1), ("slow", 4), ("fast", 4)]
    by_cell = {(r.model, r.batch_size): r for r in records}
    slow, fast = by_cell["slow", 4], by_cell["fast", 4]
    assert slow.ms is not None and slow.ms_per_image is not None and fast.ms is not None
    assert slow.ms >= 8 and slow.ms > fast.ms >= 2
    assert slow.ms_per_image == pytest.approx(slow.ms / 4)
    assert slow.low is not None and slow.high is not None and slow.low <= slow.ms_per_image <= slow.high
    json.dumps([r.to_json() for r in records])


def test_networks_take_turns_in_every_round() -> None:
    calls: list[str] = []
    models = {"a": Sleeper("a", 0.001, calls), "b": Sleeper("b", 0.001, calls)}
    latency.measure(models, torch.zeros(1, 3), (1,), rounds=4, seconds=0.0, warmup=1, progress=False)
    assert calls[-8:] == ["a", "b"] * 4


def test_out_of_memory_is_a_cell() -> None:
    models = {"glutton": Glutton(), "other": nn.Identity()}
    records = latency.measure(models, torch.zeros(2, 3), (4, 16), rounds=2, seconds=0.0, progress=False)
    errors = {(r.model, r.batch_size): r.error for r in records}
    assert errors == {
        ("glutton", 4): None,
        ("other", 4): None,
        ("glutton", 16): latency.OUT_OF_MEMORY,
        ("other", 16): None,
    }
    assert next(r.ms for r in records if r.error) is None


def test_other_errors_are_not_swallowed_and_the_mode_is_put_back() -> None:
    model = nn.Linear(4, 2).train()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        latency.measure({"m": model}, torch.zeros(1, 3), (1,), progress=False)
    assert model.training
    with pytest.raises(LatencyError, match="no networks"):
        latency.measure({}, torch.zeros(1, 3))
    with pytest.raises(LatencyError, match="batch_sizes"):
        latency.measure({"m": model}, torch.zeros(1, 4), (0,))


@pytest.mark.parametrize(("own_size", "exported"), [(False, [1]), (True, [1, 4])])
def test_networks_are_exported_with_one_sample_where_any_number_fits(own_size, exported, monkeypatch) -> None:
    pytest.importorskip("onnxruntime")
    from lcprune.latency.onnx import OnnxRuntime

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(16, 2)

        def forward(self, x):
            x = self.conv(x)
            return self.head(x.view(len(x), 16) if own_size else x.flatten(1))

    seen, export = [], OnnxRuntime._export

    def record(self, network, x):
        seen.append(len(x))
        return export(self, network, x)

    monkeypatch.setattr(OnnxRuntime, "_export", record)
    networks = {"one": Network()}
    found = latency.measure_networks(latency.make_backend("onnx", "cpu"), networks, (torch.zeros(1, 3, 4, 4),), 4)
    assert seen == exported and found["one"] > 0
