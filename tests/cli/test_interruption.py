"""Ctrl-C in the middle, and going on: nothing is lost and the result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "lcprune", "prune"]
SETTINGS = [
    "--macs", "50%", "--epochs", "12", "--device", "cpu", "--no-report", "--set", "search.pool=8",
    "--set", "search.iterations=8", "--set", "search.images=256",
]  # fmt: skip


def interrupt_when(condition, process: subprocess.Popen[str]) -> tuple[int, str]:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["search", "tuning"])
def test_ctrl_c_keeps_what_was_done_and_resume_gives_the_same_network(trained, tmp_path, stage):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "half"
    network = folder / "networks" / "lcp-50-pc"
    started = {
        "search": lambda: (network / "search.jsonl").is_file(),
        "tuning": lambda: (network / "tuning" / "metrics.jsonl").is_file(),
    }[stage]
    process = subprocess.Popen(
        [*COMMAND, str(trained), *SETTINGS, "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    code, err = interrupt_when(started, process)
    assert code == 130, err
    assert "interrupted" in err and f"--out {folder} --resume" in err and "Traceback" not in err
    done = subprocess.run([*COMMAND, "--out", str(folder), "--resume", "-q"], env=environment, check=False)
    assert done.returncode == 0
    whole = tmp_path / "whole"
    subprocess.run([*COMMAND, str(trained), *SETTINGS, "--out", str(whole), "-q"], env=environment, check=True)

    def results(path: Path) -> list[tuple[float, float]]:
        rows = json.loads((path / "records" / "results.json").read_text())
        return [(row["macs"], row["loss"]) for row in rows]

    assert results(folder) == results(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
