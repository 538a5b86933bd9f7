"""Latencies are measured side by side, and running out of memory is a cell, not a crash."""

from __future__ import annotations

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
    assert [(r.network, r.batch_size) for r in records] == [("slow", 1), ("fast", 1), ("slow", 4), ("fast", 4)]
    by_cell = {(r.network, r.batch_size): r for r in records}
    slow, fast = by_cell["slow", 4], by_cell["fast", 4]
    assert slow.ms is not None and fast.ms is not None
    assert 4 * slow.ms >= 8 and slow.ms > fast.ms and 4 * fast.ms >= 2
    assert slow.low is not None and slow.high is not None and slow.low <= slow.ms <= slow.high


def test_networks_take_turns_in_every_round() -> None:
    calls: list[str] = []
    models = {"a": Sleeper("a", 0.001, calls), "b": Sleeper("b", 0.001, calls)}
    latency.measure(models, torch.zeros(1, 3), (1,), rounds=4, seconds=0.0, warmup=1, progress=False)
    assert calls[-8:] == ["a", "b"] * 4


def test_out_of_memory_is_a_cell() -> None:
    models = {"glutton": Glutton(), "other": nn.Identity()}
    records = latency.measure(models, torch.zeros(2, 3), (4, 16), rounds=2, seconds=0.0, progress=False)
    errors = {(r.network, r.batch_size): r.error for r in records}
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


def test_medians_wait_until_they_are_steady(pretend) -> None:
    times = iter([1.0] * 3 + [5.0, 1.0, 9.0] + [1.0] * 50)
    backend = pretend(lambda model: next(times))
    found = latency.measure_networks(backend, {"x": nn.Identity()}, (torch.zeros(1, 3),), 1)
    assert found == {"x": pytest.approx(1.0)} and len(list(times)) > 50 - 15


def test_networks_that_take_long_are_measured_fewer_times(pretend) -> None:
    def runs(ms: float) -> int:
        count: list[int] = []
        backend = pretend(lambda model: count.append(1) or ms * (1 + 0.2 * (len(count) % 3)))
        latency.measure_networks(backend, {"x": nn.Identity()}, (torch.zeros(1, 3),), 1)
        return len(count)

    assert runs(10.0) > runs(600.0) > runs(5000.0)


def test_running_out_of_memory_is_said_where_a_figure_is_needed() -> None:
    backend = latency.make_backend("eager", "cpu")
    with pytest.raises(LatencyError, match="out of memory with batch 16"):
        latency.measure_networks(backend, {"glutton": Glutton()}, (torch.zeros(2, 3),), 16)


def test_any_backend_can_be_measured_with(pretend) -> None:
    models = {"small": nn.Linear(10, 10), "large": nn.Linear(100, 100)}
    records = latency.measure(models, torch.zeros(1, 10), (1, 2), backend=pretend(), rounds=2, progress=False)
    assert [record.ms for record in records] == pytest.approx([0.11, 10.1, 0.055, 5.05])


def test_wrong_backends_are_refused() -> None:
    with pytest.raises(LatencyError, match="there is no backend 'tpu'"):
        latency.make_backend("tpu", "cpu")
    with pytest.raises(LatencyError, match="'cudagraph' needs a CUDA device"):
        latency.make_backend("cudagraph", "cpu")


def test_compiled_networks_run() -> None:
    net, x = nn.Linear(4, 2).eval(), torch.ones(1, 4)  # needs no compiler
    with torch.inference_mode():
        assert torch.allclose(latency.make_backend("compile", "cpu").network(net, (x,))(), net(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["eager", "cudagraph"])
def test_networks_on_a_gpu_are_measured(backend) -> None:
    models = {"small": nn.Linear(64, 64), "large": nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)])}
    inputs = {"small": torch.zeros(8, 64), "large": torch.zeros(8, 4096)}
    runner = latency.make_backend(backend, "cuda")
    found = [latency.measure_networks(runner, {name: models[name]}, (inputs[name],), 8)[name] for name in models]
    assert 0 < found[0] < found[1]


def test_onnx_runtime_measures_single_precision() -> None:
    pytest.importorskip("onnxruntime")
    backend = latency.make_backend("onnx", "cpu")
    found = latency.measure({"n": nn.Linear(4, 2)}, torch.zeros(1, 4), (1,), backend=backend, rounds=2, progress=False)
    assert found[0].ms is not None and found[0].ms > 0
    with pytest.raises(LatencyError, match="measures float32 networks, not float64"):
        latency.measure_networks(backend, {"n": nn.Linear(4, 2).double()}, (torch.zeros(1, 4).double(),), 1)


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
        seen.append(len(x[0]))
        return export(self, network, x)

    monkeypatch.setattr(OnnxRuntime, "_export", record)
    networks = {"one": Network()}
    found = latency.measure_networks(latency.make_backend("onnx", "cpu"), networks, (torch.zeros(1, 3, 4, 4),), 4)
    assert seen == exported and found["one"] > 0
