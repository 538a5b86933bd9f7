"""Ctrl-C in the middle, and going on: nothing is lost and the result is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import few_digits

SCRIPT = Path(__file__).parents[1] / "signalled.py"


def interrupted(*words: object) -> str:
    """Run a command in a process that is interrupted, and return what it said."""
    command = [sys.executable, *map(str, (SCRIPT, "SIGINT", *words))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def results(folder: Path) -> list[tuple[float, float]]:
    rows = json.loads((folder / "records" / "results.json").read_text())
    return [(row["macs"], row["loss"]) for row in rows]


def test_ctrl_c_keeps_what_was_done_and_resume_gives_the_same_network(lcprune, trained, quick, tmp_path):
    few = f"{few_digits.__file__}:build"
    prune = ["prune", trained, "--data", few, "--macs", "50%", "--epochs", 2, *quick, "--no-report"]
    whole, folder = tmp_path / "whole", tmp_path / "half"
    assert lcprune(*prune, "--out", whole, "-q").code == 0

    said = interrupted("search", 5, *prune, "--out", folder)
    assert f"go on with: lcprune prune --out {folder} --resume" in said
    network = folder / "networks" / "lcp-50-pc"
    assert (network / "search.jsonl").read_bytes().count(b"\n") == 1 + 5 and not (network / "tuning").exists()

    interrupted("tuning", 6, "prune", "--out", folder, "--resume")  # of the 4 steps of each epoch
    assert (network / "tuning" / "metrics.jsonl").read_bytes().count(b"\n") == 1
    assert len(results(folder)) == 1
    assert lcprune("prune", "--out", folder, "--resume", "-q").code == 0

    assert results(folder) == results(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
