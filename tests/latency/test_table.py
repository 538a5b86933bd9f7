"""Tables predict what they hold, never fall when a width of one kind grows, and say what is missing."""

from __future__ import annotations

import json
import shutil
import timeit
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lcprune
from lcprune import latency
from lcprune.errors import LatencyError
from lcprune.latency.backends import Backend, Probe, make_backend, medians
from lcprune.latency.build import fit
from lcprune.latency.grid import measure_layer
from lcprune.latency.operations import distinct, operations
from lcprune.latency.steps import read_steps
from lcprune.latency.table import Layer


class Stairs(Backend):
    """A device whose layers take a known time: it rounds every width up to a step, and is slow if one is not `even`."""

    step = 1
    even = 1

    def layer(self, one: Any, widths: Any) -> Probe:
        rounded = [-(-width // self.step) * self.step for width in widths]
        slow = 1.5 if any(width % self.even for width in widths) else 1.0
        return Probe(lambda: slow * float(np.prod(rounded)) if rounded else 1.0)

    def seconds(self, run: Any, repeats: int) -> float:
        return float(run()) * 1e-6


@pytest.fixture(scope="module")
def graph() -> Any:
    return lcprune.trace(lcprune.models.build("resnet20"), lcprune.models.example_input("resnet20"))


def made(graph: Any, step: int = 1, vectors: int = 1, **about: Any) -> latency.Table:
    device = Stairs(torch.device("cpu"))
    device.step, device.even = step, vectors
    widest: dict[str, Any] = {}
    for one in operations(graph):
        if one.key not in widest or one.full > widest[one.key].full:
            widest[one.key] = one
    layers = {key: measure_layer(device, one, about.get("even", 1)) for key, one in widest.items()}
    return latency.Table(layers, **about)


@pytest.mark.parametrize("step", [1, 8, 16])
def test_the_prediction_is_the_sum_over_layers(graph, step) -> None:
    predict = latency.Predictor(made(graph, step), graph)
    rng = np.random.default_rng(0)
    for _ in range(5):
        counts = np.array([rng.integers(1, size + 1) for size in graph.cost.sizes])
        expected = 0.0
        for one in distinct(operations(graph)):
            widths = [axis.fixed + sum(counts[g] * times for g, times in axis.parts) for axis in one.axes]
            expected += one.count * 1e-3 * float(np.prod([-(-width // step) * step for width in widths]))
        assert predict(counts) == pytest.approx(expected, rel=0.03)


def test_widths_that_fill_vectors_are_predicted_apart_from_others(graph) -> None:
    apart = latency.Predictor(made(graph, vectors=4, even=4), graph)
    together = latency.Predictor(made(graph, vectors=4), graph)
    rng = np.random.default_rng(0)
    errors = []
    for multiple in (1, 4, 1, 4, 1, 4):
        counts = np.array([multiple * rng.integers(1, size // multiple + 1) for size in graph.cost.sizes])
        counts = np.where(rng.random(len(counts)) < 0.3, graph.cost.sizes, counts)  # some groups are whole
        expected = 0.0
        for one in distinct(operations(graph)):
            widths = [axis.fixed + sum(counts[g] * times for g, times in axis.parts) for axis in one.axes]
            slow = 1.5 if any(width % 4 for width in widths) else 1.0
            expected += one.count * 1e-3 * (slow * float(np.prod(widths)) if widths else 1.0)
        assert apart(counts) == pytest.approx(expected, rel=0.03)
        errors.append(together(counts) / expected - 1)
    assert max(errors) > 0.2  # a table that does not know of kinds takes the slower one for both


@pytest.mark.parametrize("step", [8, 16, 24, 32])
def test_the_grid_finds_the_steps(step) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 128, 1), torch.nn.Conv2d(128, 4, 1))
    one = operations(lcprune.trace(net, torch.zeros(1, 3, 4, 4)))[0]
    device = Stairs(torch.device("cpu"))
    device.step = step
    layer = measure_layer(device, one)
    widths = np.arange(1, 129)
    true = 1e-3 * -(-widths // step) * step
    found = np.interp(widths, layer.widths[0], layer.ms)
    # Far fewer points than widths; where the widths are rounded to less than the spacing, half a step is missed.
    assert len(layer.widths[0]) < 48 and np.abs(found - true).mean() < 0.02 * true[-1]
    if step > 8:
        assert {step, step + 1} <= set(layer.widths[0])


def test_a_slip_is_measured_again_and_a_step_stays() -> None:
    class Slipping(Stairs):
        made = 0

        def layer(self, one: Any, widths: Any) -> Probe:
            probe = super().layer(one, widths)
            if widths == (17,):
                return Probe(lambda: 300.0)  # always: nothing wider takes more than 128
            if widths == (32,):
                self.made += 1
                return Probe(lambda: 900.0) if self.made == 1 else probe
            return probe

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 128, 1), torch.nn.Conv2d(128, 4, 1))
    one = operations(lcprune.trace(net, torch.zeros(1, 3, 4, 4)))[0]
    device = Slipping(torch.device("cpu"))
    layer = measure_layer(device, one)
    found = dict(zip(layer.widths[0], layer.ms, strict=True))
    assert device.made == 2 and found[32] == pytest.approx(0.032)
    assert found[17] == pytest.approx(0.3) and found[128] == pytest.approx(0.128)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_noise_never_makes_a_wider_network_faster(seed) -> None:
    rng = np.random.default_rng(seed)
    layer = Layer(((1, 4, 8), (2, 3, 9, 16)), rng.uniform(0.1, 1.0, (3, 4)))
    rising = layer.rising().ms
    assert (np.diff(rising, axis=0) >= 0).all() and (np.diff(rising, axis=1) >= 0).all() and (rising >= layer.ms).all()


def test_a_round_width_that_is_faster_counts_where_only_round_ones_occur() -> None:
    layer = Layer(((1, 8, 9, 16, 17, 20),), np.array([3.0, 1.0, 4.0, 2.0, 6.0, 6.0]))
    assert layer.rising().ms.tolist() == [3.0, 3.0, 4.0, 4.0, 6.0, 6.0]
    eights = layer.rising(8)
    assert eights.widths == ((8, 16, 20),) and eights.ms.tolist() == [1.0, 2.0, 6.0]
    apart = layer.rising(even=4)
    assert apart.widths == ((8, 16, 20, 1, 9, 17),) and apart.ms.tolist() == [1.0, 2.0, 6.0, 3.0, 4.0, 6.0]


def test_a_measured_table_is_monotone_and_fast(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LCPRUNE_CACHE", str(tmp_path))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 40, 3), torch.nn.ReLU(), torch.nn.Conv2d(40, 24, 3))
    graph = lcprune.trace(torch.nn.Sequential(net, torch.nn.Conv2d(24, 2, 1)), torch.zeros(1, 3, 16, 16))
    table = latency.measure_table(graph, progress=False)
    predict = latency.Predictor(table, graph)
    rng = np.random.default_rng(1)
    for _ in range(20):
        counts = np.array([rng.integers(1, size + 1) for size in graph.cost.sizes])
        more = counts + table.even * rng.integers(0, 4, len(counts))
        assert 0 < predict(counts) <= predict(np.where(more <= graph.cost.sizes, more, counts))
    assert min(timeit.repeat(lambda: predict(counts), number=10, repeat=10)) / 10 < 2e-3
    # Measured once: the second time it comes from the cache, with everything it was made with.
    (file,) = (tmp_path / "latency").iterdir()
    again = latency.measure_table(graph, progress=False)
    assert again.to_json() == table.to_json() == json.loads(file.read_text())
    assert (again.batch, again.backend, again.precision) == (1, "eager", "float32")
    assert again.versions["torch"] == torch.__version__ and again.calibration
    other = latency.measure_table(graph, batch=2, progress=False)
    assert other.batch == 2 and len(list((tmp_path / "latency").iterdir())) == 2


@pytest.mark.parametrize("step", [1, 8, 16])
def test_auto_reads_the_steps(step) -> None:
    layers = [torch.nn.Conv2d(3, 64, 1), *[torch.nn.Conv2d(64, 64, 3) for _ in range(3)], torch.nn.Conv2d(64, 2, 1)]
    graph = lcprune.trace(torch.nn.Sequential(*layers), torch.zeros(1, 3, 12, 12))
    assert read_steps(made(graph, step), graph) == step


def test_auto_leaves_narrow_networks_something_to_choose_from() -> None:
    layers = [
        torch.nn.Conv2d(3, 16, 1),
        torch.nn.Conv2d(16, 32, 1),
        torch.nn.Conv2d(32, 64, 1),
        torch.nn.Conv2d(64, 2, 1),
    ]
    graph = lcprune.trace(torch.nn.Sequential(*layers), torch.zeros(1, 3, 12, 12))
    table = made(graph, 64)  # the device rounds everything up to 64: time does not depend on widths here
    assert read_steps(table, graph) == 8


def test_offset_and_factor() -> None:
    sums = np.array([1.0, 2.0, 4.0])
    assert fit(sums, 0.5 + 1.5 * sums).factor == pytest.approx(1.5)
    assert fit(sums, 0.5 + 1.5 * sums).offset == pytest.approx(0.5)
    # The host takes 3 ms whatever the widths: that is a floor, not an offset.
    bound = fit(np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 3.0, 4.0, 8.0]), launches=True)
    assert (bound.floor, bound.factor, bound.offset) == (3.0, pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert fit(sums, np.array([3.0, 3.01, 3.02]), launches=True).floor == 3.01
    # One measurement that was disturbed does not count.
    many = np.arange(1.0, 10.0)
    disturbed = fit(many, (0.5 + 1.5 * many) * np.where(many == 7, 1.4, 1.0))
    assert (disturbed.offset, disturbed.factor) == (pytest.approx(0.5, rel=0.03), pytest.approx(1.5, rel=0.01))
    # Narrow networks may gain more than their layers do by themselves, up to a point.
    assert fit(many, 1.5 * many - 0.25).offset == pytest.approx(-0.25)
    # Noise that would make wider networks faster is not believed.
    assert fit(np.array([1.0, 2.0]), np.array([2.0, 1.0])).factor > 0
    assert fit(np.array([1.0, 2.0]), np.array([0.5, 1.5])).offset == 0


def test_medians_wait_until_they_are_stable() -> None:
    values = iter([1.0, *[5.0, 1.0, 9.0], *[1.0] * 50])

    class Shaky(Backend):
        def seconds(self, run: Any, repeats: int) -> float:
            return next(values)

    assert medians(Shaky(torch.device("cpu")), {"x": Probe(lambda: None)}, least=3, most=9)["x"] == 1000.0


def test_a_table_survives_its_file(graph, tmp_path) -> None:
    table = made(graph, 8, device="a board", backend="theirs")
    table.save(tmp_path / "table.json")
    again = latency.Table.load(tmp_path / "table.json")
    counts = graph.cost.sizes // 2
    assert latency.Predictor(again, graph)(counts) == pytest.approx(latency.Predictor(table, graph)(counts), rel=1e-4)
    assert (again.device, again.backend) == ("a board", "theirs")


def test_a_blank_table_is_filled_in_elsewhere(graph, tmp_path) -> None:
    stored = latency.blank(graph, batch=4)
    with pytest.raises(LatencyError, match=r'layer "convolution.* has no "ms": it was not measured'):
        latency.Table.from_json(stored)
    for entry in stored["layers"]:
        entry["ms"] = np.full([len(grid) for grid in entry["widths"]], 0.25).tolist()
    table = latency.Table.from_json(json.loads(json.dumps(stored)))
    assert latency.Predictor(table, graph)(graph.cost.sizes) == pytest.approx(
        0.25 * len(latency_operations(graph, table))
    )


def latency_operations(graph: Any, table: latency.Table) -> list[Any]:
    from lcprune.latency.fusion import fuse

    return fuse(operations(graph, table.batch), table.fusion)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(format="x"), '"format" must be'),
        (lambda t: t.update(version=9), '"version" is 9'),
        (lambda t: t.update(layers=[]), '"layers" is missing or empty'),
        (lambda t: t.update(batch=0), '"batch" is 0'),
        (lambda t: t.update(fusion="all"), "\"fusion\" is 'all'"),
        (lambda t: t["correction"].update(factor="x"), '"factor" of "correction"'),
        (lambda t: t["correction"].update(factor=-1), "cannot be negative"),
        (lambda t: t["layers"][0].pop("shape"), 'layer 0 has no "shape"'),
        (lambda t: t["layers"][0].update(widths=3), '"widths" must be a list of grids'),
        (lambda t: t["layers"][0].update(ms=[1.0]), '"ms" has the shape'),
        (lambda t: t["layers"][0].update(ms="fast"), "must hold numbers alone"),
        (lambda t: t["layers"][1].update(widths=[[16, 8]], ms=[1, 2]), '"widths" must rise'),
        (lambda t: t["layers"][1].update(widths=[[8, 16]], ms=[1, -2]), "not negative"),
    ],
)
def test_a_damaged_table_names_what_is_wrong(graph, tmp_path, change, message) -> None:
    stored = made(graph, 16).to_json()
    change(stored)
    (tmp_path / "table.json").write_text(json.dumps(stored))
    with pytest.raises(LatencyError, match=message):
        latency.Table.load(tmp_path / "table.json")


def test_a_table_of_another_network_names_the_missing_layer(graph) -> None:
    table = made(graph, 16)
    other = lcprune.trace(lcprune.models.build("resnet20"), torch.zeros(1, 3, 48, 48))
    with pytest.raises(LatencyError, match=r'has no layer "convolution\(float32\[1,3,48,48\]'):
        latency.Predictor(table, other)
    layers = {key: Layer(tuple(g[:1] for g in v.widths), v.ms[:1]) for key, v in table.layers.items() if v.ms.ndim == 1}
    with pytest.raises(LatencyError, match="the table ends at 1"):
        latency.Predictor(latency.Table(layers), graph)


def test_wrong_backends_and_batches_are_refused(graph) -> None:
    with pytest.raises(LatencyError, match="there is no backend 'tpu'"):
        make_backend("tpu", "cpu")
    with pytest.raises(LatencyError, match="'cudagraph' needs a CUDA device"):
        make_backend("cudagraph", "cpu")
    with pytest.raises(LatencyError, match="batch=0"):
        latency.measure_table(graph, batch=0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_compiled_networks_run() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.ReLU()).eval()
    backend = make_backend("compile", "cpu")
    x = torch.ones(1, 3, 4, 4)
    with torch.inference_mode():
        assert torch.allclose(backend.network(net, (x,))(), net(x))
    assert backend.fusion == "pointwise"


def test_onnx_runtime_layers_and_networks(tmp_path, monkeypatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("LCPRUNE_CACHE", str(tmp_path))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 8, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    ).eval()
    graph = lcprune.trace(net, torch.zeros(1, 3, 16, 16))
    table = latency.measure_table(graph, backend="onnx", progress=False)
    assert table.fusion == "activation" and not any("batch_norm" in key or "relu" in key for key in table.layers)
    assert table.versions["onnxruntime"]
    predict = latency.Predictor(table, graph)
    assert 0 < predict(graph.cost.sizes // 2) <= predict(graph.cost.sizes)
    with pytest.raises(LatencyError, match="measures float32 networks"):
        half = lcprune.trace(net.to(torch.float64), torch.zeros(1, 3, 16, 16, dtype=torch.float64))
        latency.measure_table(half, backend="onnx", progress=False)
