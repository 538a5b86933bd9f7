"""Short searches, for tests of engines."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file

import few_digits
import lcprune
from lcprune.runs import RunFolder
from searching import searching

TIMES = {"search_seconds"}
SHORT = {"pool": 6, "iterations": 14, "sample": 3, "images": 128, "after": "cut"}


TOTAL = 20


def pruned(network, digits, engine="local", search=SHORT, folder=None, resume=False, by=lcprune.prune, **more):
    """A short search on the digits; `more` are settings of it or of `prune`."""
    loss_fn = {"loss_fn": more.pop("loss_fn")} if "loss_fn" in more else {}
    options = {"macs": 0.4, **searching(digits.train, **search, **loss_fn), "progress": False, **more}
    return by(network.graph, run=lcprune.Job(folder, resume, engine), **options)


def told(history) -> list[tuple[Any, ...]]:
    """What a search is, without its times."""
    return [(r.iteration, r.loss, r.difference, r.beta, r.counts, r.best, r.cached) for r in history]


def write_network(folder) -> str:
    """A run folder with a small network, trained a little."""
    from lcprune.cli import main

    command = ["train", few_digits.NET, "--data", "digits", "--epochs", "1", "--device", "cpu", "--quiet"]
    assert main([*command, "--no-report", "--out", str(folder / "net")]) == 0
    return str(folder / "net")


def rows(folder) -> list[dict]:
    """Results without times."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in RunFolder.open(folder).records("results")]


def same_weights(one, other) -> bool:
    """Whether two folders hold the same network, to the bit."""
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
