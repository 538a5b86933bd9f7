"""Images without labels: enough to prune and repair, and what needs labels says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def images(tmp_path: Path) -> str:
    """A folder of images, and beside it a network that takes them."""
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def net(num_classes=1000):\n"
        "    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),\n"
        "                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))\n"
        "def maps(num_classes=1000):\n"
        "    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))\n"
    )
    return f"imagenet:{folder},size=8"


def test_a_network_is_pruned_and_repaired(lcprune, images):
    said = lcprune(
        *("prune", "mine.py:net", "--data", images, "--macs", "50%", "--method", "naive", "--out", "a", "--json", "-q"),
        *("--repair", "refit", "--device", "cpu"),
    )
    assert said.code == 0, said.err
    cut = said.json["results"][-1]
    assert cut["macs_share"] <= 0.5 and cut["repair"] == "refit"
    assert "accuracy" not in cut


@pytest.mark.parametrize(("network", "measure"), [("net", "divergence"), ("maps", "distance")])
def test_scores_of_classes_are_compared_as_probabilities(lcprune, images, network, measure):
    said = lcprune(
        *("prune", f"mine.py:{network}", "--data", images, "--macs", "60%", "--out", "a", "-q", "--device", "cpu"),
        *("--set", "search.pool=2", "--set", "search.iterations=2", "--set", "search.sample=1"),
    )
    assert said.code == 0, said.err
    assert json.loads(Path("a/plan.json").read_text())["meta"]["repair"]["measure"] == measure


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("prune", "--macs", "50%", "--method", "naive", "--epochs", 1), "--epochs 1"),
        (("train", "--epochs", 1), "training"),
        (("evaluate",), "evaluating"),
    ],
)
def test_what_needs_labels_says_so(lcprune, images, command, why):
    name, *more = command
    said = lcprune(name, "mine.py:net", "--data", images, *more, "--device", "cpu")
    assert said.code == 2
    assert f"{why} needs labels, and {images} has none" in " ".join(said.err.split())
    assert not Path("runs").exists()
