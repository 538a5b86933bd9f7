"""The same command under torchrun: every process trains, one writes and speaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lcprune.runs import RunFolder


@pytest.mark.slow
def test_train_under_torchrun_writes_one_folder_and_one_table(lcprune, tmp_path: Path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lcprune"]
    command = ["train", "digits_resnet", "--data", "digits", "--epochs", "1", "--device", "cpu", "--out", "runs/train"]
    done = subprocess.run(
        [*launch, *command, "--no-report", "-q"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("original") == 1
    (row,) = RunFolder.open(tmp_path / "runs/train").records("results")
    said = lcprune("evaluate", tmp_path / "runs/train", "--json", "--device", "cpu")
    assert said.json["accuracy"] == pytest.approx(row["accuracy"])
