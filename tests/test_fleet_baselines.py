"""Baselines as fleets: the better recipe on held-out images is the one that is trained on all, and kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from paper import fleet_baselines
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    given = ["--network", "resnet20", "--epochs", 10, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["fleet_baselines.py", *map(str, (*words, *given))])
    fleet_baselines.main()


@pytest.mark.slow
def test_recipes_are_compared_then_seeds_trained_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 10
    images = generator.integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    monkeypatch.setattr(fleet_baselines, "RECIPES", {"usual": {}, "tiny": {"lr": 1e-9}})
    monkeypatch.setattr(fleet_baselines, "TRIAL_SEEDS", (11,))
    monkeypatch.setattr(fleet_baselines, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(fleet_baselines, "RESULTS", tmp_path / "results")
    given = ("--data", tmp_path / "data.npz", "--out", tmp_path / "out")
    with pytest.raises(SystemExit, match="out of time"):
        run(monkeypatch, "choose", *given, "--val", 20, "--minutes", 0)
    run(monkeypatch, "choose", *given, "--val", 20)
    found = json.loads((tmp_path / "out" / "recipes.json").read_text())
    best = max(found["recipes"], key=lambda row: row["val_accuracy"])
    assert found["chosen"] == best["recipe"] and found["training_images"] == 20 == found["validation_images"]
    assert not any("test" in key for key in found)
    run(monkeypatch, "train", *given, "--seeds", 1, 2)
    run(monkeypatch, "keep", *given)
    record = json.loads((tmp_path / "results" / "resnet20-seeds.json").read_text())
    assert record["recipe"] == found["chosen"] and record["training_images"] == 40
    assert [row["stored_as"] for row in record["networks"]] == ["float32", "float16"]
    assert record["mean"] == pytest.approx(np.mean([row["test_accuracy"] for row in record["networks"]]))
    whole = load_file(tmp_path / "kept" / "resnet20-seed-1.safetensors")
    trained = load_file(tmp_path / "out" / "seed-1.safetensors")
    assert all(whole[name].equal(trained[name]) for name in trained)


def test_the_kept_baselines_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "paper" / "results" / "resnet56-seeds.json").read_text())
    for row in record["networks"]:
        weights = load_file(ROOT / "benchmarks" / "paper" / "baselines" / row["file"])
        assert str(weights["conv1.weight"].dtype) == f"torch.{row['stored_as']}"
        assert abs(row["file_accuracy"] - row["test_accuracy"]) < 0.001
        spreads = torch.cat([value for key, value in weights.items() if key.endswith("running_var")])
        assert row["silent_channels"] == int((spreads < fleet_baselines.SILENT).sum())
