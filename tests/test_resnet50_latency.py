"""Table 3 in small: networks in turns, pieces that are measured once, and a table of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from paper import resnet50_latency
from paper.store import Store


def test_networks_are_measured_in_turns_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "resnet50-latency-cpu.json"
    words = ["resnet50_latency.py", "--network", "resnet20", "--device", "cpu", "--backends", "eager", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), "--batches", "1"])
    resnet50_latency.main()
    first = json.loads(out.read_text())
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), "--batches", "1", "4"])
    resnet50_latency.main()
    record = json.loads(out.read_text())
    assert record["pieces"]["eager fp32 1"] == first["pieces"]["eager fp32 1"], "measured again"
    assert set(record["pieces"]) == {"eager fp32 1", "eager fp32 4"}
    whole = record["costs"].pop("original")
    assert set(record["costs"]) == {"naive", "uniform", "naive, widths of 8", "uniform, widths of 8"}
    assert all(cut["macs"] <= 0.5 * whole["macs"] for cut in record["costs"].values())
    capsys.readouterr()

    page = resnet50_latency.table_3(Store(tmp_path))
    ms = record["pieces"]["eager fp32 4"]["ms"]
    assert f"{ms['uniform'] / 4:.3g} ({ms['original'] / ms['uniform']:.2f})" in page
    assert "5.03" in page and page.count("–") >= 10, "batches that were not measured are missing"
