"""Short searches, for tests of engines."""

from __future__ import annotations

from typing import Any

import lcprune
from lcprune import Search

SHORT = Search(pool=6, iterations=14, sample=3, images=128)


def pruned(network, digits, engine="local", search=SHORT, **more):
    """A short search on the digits."""
    options = {"macs": 0.4, "data": digits.train, "graph": network.graph, "progress": False, **more}
    return lcprune.prune(network.model, digits.example, search=search, engine=engine, **options)


def told(history) -> list[tuple[Any, ...]]:
    """What a search is, without its times."""
    return [(r.iteration, r.loss, r.difference, r.beta, r.counts, r.best, r.cached) for r in history]


def write_network(folder) -> str:
    """A run folder with a small network, trained a little."""
    from lcprune.cli import main

    command = ["train", "digits_resnet", "--data", "digits", "--epochs", "1", "--device", "cpu", "--quiet"]
    assert main([*command, "--no-report", "--out", str(folder / "net")]) == 0
    return str(folder / "net")
