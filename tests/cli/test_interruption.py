"""Ctrl-C in the middle, and going on: nothing is lost and the result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "lcprune", "prune"]
SETTINGS = [
    "--macs", "50%", "--epochs", "36", "--device", "cpu", "--no-report", "--set", "search.pool=8",
    "--set", "search.iterations=8", "--set", "search.images=256",
]  # fmt: skip
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def interrupted_when(condition: Callable[[], bool], *arguments: str) -> str:
    """Start the command, press Ctrl-C when `condition` holds, and return what it said."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    return err


def results(folder: Path) -> list[tuple[float, float]]:
    rows = json.loads((folder / "records" / "results.json").read_text())
    return [(row["macs"], row["loss"]) for row in rows]


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done_and_resume_gives_the_same_network(trained, tmp_path):
    whole = tmp_path / "whole"
    command = [*COMMAND, str(trained), *SETTINGS, "--out", str(whole), "-q"]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)

    folder = tmp_path / "half"
    network = folder / "networks" / "lcp-50-pc"
    searching, tuning = network / "search.jsonl", network / "tuning" / "metrics.jsonl"
    said = interrupted_when(searching.is_file, str(trained), *SETTINGS, "--out", str(folder))
    assert f"go on with: lcprune prune --out {folder} --resume" in said and "Traceback" not in said
    assert not tuning.exists()
    interrupted_when(tuning.is_file, "--out", str(folder), "--resume")
    assert len(results(folder)) == 1
    subprocess.run([*COMMAND, "--out", str(folder), "--resume", "-q"], env=ENVIRONMENT, check=True)

    assert results(folder) == results(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
