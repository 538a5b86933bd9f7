"""What a latency limit may be, and what predicts it where nothing is measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lcprune
from lcprune import Latency
from lcprune.errors import LatencyError
from lcprune.latency import Table
from lcprune.limit import Limit


def test_a_latency_is_a_limit_with_its_conditions() -> None:
    assert Latency("60%").limit == Limit(0.6) and Latency("60%").limits == (Limit(0.6),)
    several = Latency(["60%", "2ms"], batch=8, backend="onnx")
    assert several.limits == several.limit == (Limit(0.6), Limit(2.0, "ms"))
    assert Latency.of("60%") == Latency("60%") and Latency.of(several) is several and Latency.of(None) is None
    with pytest.raises(AttributeError):
        several.batch = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"limit": "fast"}, lcprune.BudgetError, "latency='fast'"),
        ({"limit": "60%", "batch": 0}, LatencyError, "batch=0"),
        ({"limit": "60%", "batch": 1.5}, LatencyError, r"batch=1\.5"),
        ({"limit": "60%", "backend": "tpu"}, LatencyError, "no backend 'tpu'; choose one of eager"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(settings, error, words) -> None:
    with pytest.raises(error, match=words):
        Latency(**settings)


def prune(plain, digits, latency, **settings) -> lcprune.PruneResult:
    return lcprune.prune(plain.graph, latency=latency, **{"method": "naive", "progress": False, **settings})


def test_a_function_of_counts_predicts(plain, digits) -> None:
    result = prune(plain, digits, Latency(0.5, table=lambda counts: float(np.sum(counts))))
    assert sum(map(len, result.plan.kept.values())) == sum(plain.graph.cost.sizes) // 2
    assert result.latency.measured_ms is None and result.latency.met and "not measured here" in str(result.latency)
    assert result.latency.predicted_ms <= result.latency.limit_ms == sum(plain.graph.cost.sizes) / 2


def test_several_steps_end_at_a_predicted_latency(plain, digits) -> None:
    latency = Latency([0.8, 0.5], table=lambda counts: 1e-3 * float(np.sum(counts)))
    result = lcprune.prune_in_steps(plain.graph, tune=None, latency=latency, method="naive", progress=False)
    total = sum(plain.graph.cost.sizes)
    kept = [sum(map(len, step.plan.kept.values())) for step in result.steps]
    assert kept[0] <= 0.8 * total and kept[1] <= 0.5 * total < kept[0]
    assert result.latency.limit_ms == pytest.approx(0.5e-3 * total)


def written(folder, points, **about) -> str:
    file = folder / "table.json"
    plain = [{"macs": macs, "ms": ms} for macs, ms in points]
    file.write_text(json.dumps({**about, "points": plain} if about else plain))
    return str(file)


@pytest.mark.parametrize("about", [{}, {"device": "a board", "batch": 4}])
def test_points_from_another_device_predict(plain, digits, tmp_path, about) -> None:
    full = plain.graph.macs
    file = written(tmp_path, [(full, 10.0), (0.2 * full, 6.0), (0.1 * full, 2.0)], **about)
    result = prune(plain, digits, Latency("4ms", table=file))
    # Half-way between two points.
    assert result.plan.macs <= 0.15 * full < 1.1 * result.plan.macs
    assert result.latency.predicted_ms <= 4.0 and result.latency.measured_ms is None
    assert result.latency.about == about
    share = prune(plain, digits, Latency("80%", table=file))
    assert share.latency.limit_ms == 8.0 and share.plan.macs <= 0.6 * full < 1.1 * share.plan.macs
    with pytest.raises(lcprune.BudgetError, match=r"latency='1ms' cannot be met: .* takes 2 ms \(20\.0 %\)"):
        prune(plain, digits, Latency("1ms", table=file))


def test_tables_never_fall_and_can_be_asked_both_ways(tmp_path) -> None:
    table = Table.through([(300, 5.0), (100, 4.0), (200, 6.0)], {"batch": 2})
    assert table.points == ((100, 4.0), (200, 6.0), (300, 6.0))
    assert [table.ms(macs) for macs in (50, 150, 250, 400)] == [4.0, 5.0, 6.0, 6.0]
    assert [table.macs(ms) for ms in (3.0, 5.0, 6.0, 7.0)] == [100, 150, 300, 300]
    table.save(tmp_path / "again.json")
    assert Table.load(tmp_path / "again.json") == table


@pytest.mark.parametrize(
    "content", ["{}", "[]", '[{"macs": 1, "ms": 2}]', '{"points": 3}', '[{"macs": 1}, {"macs": 2}]', "[[1, 2], [3, 4]]"]
)
def test_a_file_without_points_is_refused(tmp_path, content) -> None:
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(LatencyError, match=r'table\.json must hold two or more points such as \{"macs"'):
        Table.load(tmp_path / "table.json")
    for bad in (-1, 0):
        with pytest.raises(LatencyError, match="all positive"):
            Table.load(written(tmp_path, [(1, bad), (2, 1)]))


def test_files_that_cannot_be_read_are_named(tmp_path) -> None:
    with pytest.raises(LatencyError, match=r"nowhere\.json cannot be read: No such file"):
        Table.load(tmp_path / "nowhere.json")
    (tmp_path / "table.json").write_text("{")
    with pytest.raises(LatencyError, match=r"table\.json is not JSON"):
        Table.load(tmp_path / "table.json")


def test_a_table_of_another_network_or_batch_is_refused(plain, digits, tmp_path) -> None:
    full = plain.graph.macs
    with pytest.raises(LatencyError, match="must have a point for the whole network"):
        prune(plain, digits, Latency("50%", table=written(tmp_path, [(0.1 * full, 1.0), (0.5 * full, 2.0)])))
    file = written(tmp_path, [(0.1 * full, 1.0), (full, 2.0)], batch=4)
    prune(plain, digits, Latency("90%", batch=4, table=file))
    with pytest.raises(LatencyError, match=r"batch=8, but .* batch 4"):
        prune(plain, digits, Latency("90%", batch=8, table=file))
