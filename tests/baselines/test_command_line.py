"""Methods from the command line: options come from sections, and every method can be compared."""

from __future__ import annotations

import json

import pytest
import torch

from lcprune.cli import main
from lcprune.runs import RunFolder


@pytest.fixture
def file(tmp_path) -> str:
    """A network so small that twelve cuts of it take seconds."""
    torch.manual_seed(0)
    source = """
from torch import nn
INPUT_SHAPE = (1, 8, 8)
def net(num_classes=10):
    first = [nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    second = [nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))
"""
    (tmp_path / "tiny.py").write_text(source)
    return f"{tmp_path / 'tiny.py'}:net"


QUICK = {
    "search": {"pool": 2, "iterations": 2, "images": 64},
    "tune": {"batch_size": 256},
    "amc": {"episodes": 4, "warmup": 2},
    "soft": {"epochs": 1, "batch_size": 256},
    "slimming": {"epochs": 1, "batch_size": 256},
    "morphnet": {"epochs": 1, "trainings": 2, "batch_size": 256},
    "single_filter": {"step": 4, "tune_steps": 1, "images": 32},
    "single_filter_fisher": {"step": 4, "tune_steps": 1, "images": 32},
    "channel_lasso": {"images": 32},
    "thinet": {"images": 32},
}


def test_every_method_can_be_compared(file, tmp_path) -> None:
    methods = ["uniform", "l1_schedule", "naive", "lcp", *list(QUICK)[2:]]
    config = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in section.items())
        for name, section in QUICK.items()
    )
    (tmp_path / "run.toml").write_text(config)
    words = ["compare", file, "--data", "digits", "--macs", "50%", "--seeds", "1", "--epochs", "1", "--device", "cpu"]
    words += ["--methods", ",".join(methods), "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    assert main([*words, "--quiet", "--no-report"]) == 0
    run = RunFolder.open(tmp_path / "run")
    rows = {row["method"]: row for row in run.records("results")}
    assert set(rows) == {"original", *methods}
    assert all(rows[method]["macs_share"] <= 0.5 for method in methods)
    assert run.settings["amc"] == QUICK["amc"]
    plans = [json.loads(path.read_text())["meta"] for path in run.file("networks").glob("*/plan.json")]
    assert {meta["method"]: meta for meta in plans}["amc"]["episodes"] == 4
    triangles = {row["method"] for row in run.records("search") if row["naive"] is not None}
    assert triangles == {"lcp"}  # AMC's first network is not naive pruning


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("amc.episode=3", "has the options episodes"),
        ("soft.epochs=3", "not among the methods amc"),
        ("amc.reward=speed", "choose 'accuracy' or 'loss'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_built(setting, words, file, capfd) -> None:
    assert main(["prune", file, "--data", "digits", "--macs", "50%", "--method", "amc", "--set", setting]) == 2
    assert words in capfd.readouterr().err
