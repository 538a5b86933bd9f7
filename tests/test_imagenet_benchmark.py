"""The benchmark without a training set, in small; and weights of other frameworks under our names."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import imagenet
import imagenet_weights
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lcprune import models

NET = """
from torch import nn
def net(num_classes=1000):
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16),
                         nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command of the benchmark on a small network; what it printed."""
    (tmp_path / "mine.py").write_text(NET)
    spec = f"{tmp_path / 'mine.py'}:net"
    monkeypatch.setattr(imagenet, "NETWORKS", {"small": (spec, ",size=8", "Small")})
    torch.manual_seed(0)
    save_file(models.build(spec).state_dict(), tmp_path / "small.safetensors")
    generator = np.random.default_rng(0)
    for label in range(6):
        (tmp_path / "data" / str(label)).mkdir(parents=True)
        for number in range(5):
            pixels = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / str(label) / f"{number}.png")

    def run(what: str, *more: str) -> str:
        words = [
            "--network",
            "small",
            "--data",
            tmp_path / "data",
            "--weights",
            tmp_path,
            "--cache",
            tmp_path / "cache",
        ]
        words += ["--plans", tmp_path / "plans", "--out", tmp_path / "out.json", "--device", "cpu", "--limits", "70%"]
        monkeypatch.setattr(sys, "argv", ["imagenet.py", what, *map(str, words), *more])
        imagenet.main()
        return capsys.readouterr().out

    return run


def test_rows_are_made_once_and_shown(call, tmp_path: Path) -> None:
    call("measure", "--candidates", "4")
    record = json.loads((tmp_path / "out.json").read_text())
    made = [(row["method"], row["how"]) for row in record["processor"]]
    assert made == [(method, how) for method in imagenet.METHODS for how in ("none", "statistics", "auto")]
    assert {row["judged"] for row in record["processor"]} == {18} and len(record["full"]) == 1
    assert all(row["fitted"] < 12 for row in record["processor"]), "some of the images that serve are held back"
    assert call("measure", "--candidates", "4", "--ways", "statistics") == "", "measured again"
    call("latency", "--rounds", "1", "--methods", "naive")
    shown = call("show")
    assert "| 70 % | naive |" in shown and "ONNX Runtime, 64" in shown and "| Small | 70 % | naive |" in shown


def test_the_interval_is_wilsons() -> None:
    low, high = imagenet.wilson(0.7, 3000)
    assert (round(low, 4), round(high, 4)) == (0.6834, 0.7161)
    assert imagenet.wilson(0, 10)[0] == pytest.approx(0) and imagenet.wilson(1, 10)[1] == pytest.approx(1)
    assert math.isclose(sum(imagenet.wilson(0.5, 50)), 1)


def test_shards_are_read_end_to_end(tmp_path: Path) -> None:
    values = np.arange(10, dtype="<f4")
    (tmp_path / "a").write_bytes(values.tobytes()[:18])  # a shard may end within a number
    (tmp_path / "b").write_bytes(values.tobytes()[18:])
    weights = [{"name": "x", "shape": [2, 3], "dtype": "float32"}, {"name": "y", "shape": [4], "dtype": "float32"}]
    found = imagenet_weights.layers_model(tmp_path, {"weightsManifest": [{"paths": ["a", "b"], "weights": weights}]})
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["y"].tolist() == [6, 7, 8, 9]


def test_the_first_resnet50_strides_where_it_was_published_to() -> None:
    model = imagenet_weights.resnet50_v1()
    strides = [(stage[0].conv1.stride, stage[0].conv2.stride) for stage in (model.layer1, model.layer2, model.layer4)]
    assert strides == [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((2, 2), (1, 1))]
