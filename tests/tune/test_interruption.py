"""A run that is killed, interrupted or out of time goes on as if nothing had been; a lost one says where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lcprune import tune
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune import interrupt

Make = Callable[..., nn.Module]

SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
import torch
from lcprune import data, tune
from lcprune.tune.step import Stepper
from tests_tune_small import Small

torch.set_num_threads(1)
class Slow(Stepper):
    def step(self, position):
        time.sleep({pause})
        super().step(position)
import lcprune.tune.run
lcprune.tune.run.Stepper = Slow
torch.manual_seed(0)
print("ready", flush=True)
tune.fit(Small(), data.load("digits"), tune.recipe("baseline", epochs=4, batch_size=128, lr=0.05),
         run_dir={run!r}, resume=True, progress=False, checkpoint_seconds={every})
"""

SMALL = """
from torch import nn
class Small(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(288, 10))
"""


def start(folder: Path, run: Path, pause: float, every: float) -> subprocess.Popen[str]:
    (folder / "tests_tune_small.py").write_text(SMALL)
    script = SCRIPT.format(path=[*sys.path, str(folder)], run=str(run), pause=pause, every=every)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n", child.communicate()[1]
    return child


def finish(child: subprocess.Popen[str]) -> None:
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("every", [0.0, 0.15])
def test_sigkill_and_resume_give_the_weights_of_an_uninterrupted_run(tmp_path: Path, every: float) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(tmp_path, whole, 0, every))
    child = start(tmp_path, broken, 0.03, every)
    wait_for((broken / "checkpoint.safetensors").exists)
    time.sleep(0.2)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not (broken / "model.safetensors").exists(), "killed too late to show anything"
    finish(start(tmp_path, broken, 0, every))
    expected, got = load_file(whole / "model.safetensors"), load_file(broken / "model.safetensors")
    assert all(torch.equal(value, got[name]) for name, value in expected.items())
    lines = [(folder / "metrics.jsonl").read_text().count("\n") for folder in (whole, broken)]
    assert lines == [4, 4]


@pytest.mark.slow
def test_sigint_saves_in_the_middle_of_an_epoch_and_leaves(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(tmp_path, whole, 0, 60))
    child = start(tmp_path, broken, 0.05, 60)
    wait_for((broken / "metrics.jsonl").exists)
    time.sleep(0.8)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt: interrupted in epoch" in errors and "saved in" in errors
    assert (broken / "checkpoint.safetensors").exists()
    finish(start(tmp_path, broken, 0, 60))
    expected, got = load_file(whole / "model.safetensors"), load_file(broken / "model.safetensors")
    assert all(torch.equal(value, got[name]) for name, value in expected.items())


def quick(**changes: object) -> tune.Recipe:
    return tune.recipe("baseline", **{"epochs": 3, "batch_size": 32, "lr": 0.05, **changes})


def test_out_of_time_is_not_finished_and_can_go_on(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    whole = tune.fit(small(), blobs, quick(), progress=False)
    part = tune.fit(small(), blobs, quick(), run_dir=tmp_path, max_seconds=0.0, progress=False)
    assert not part.finished
    rest = tune.fit(small(), blobs, quick(), run_dir=tmp_path, resume=True, progress=False)
    assert rest.finished and len(rest.history) == 3
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.model.state_dict().values(), rest.model.state_dict().values(), strict=True)
    )


def test_a_finished_run_is_read_back(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    first = tune.fit(small(), blobs, quick(), run_dir=tmp_path, progress=False)
    again = tune.fit(small(), blobs, quick(), run_dir=tmp_path, resume=True, progress=False)
    assert again.history == first.history
    assert torch.equal(first.model.linear.weight, again.model.linear.weight)


def test_a_nan_stops_with_epoch_step_and_checkpoint(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    class Breaks(nn.Module):
        """Gives NaN from its eighth training step on: the third of the second epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.steps = small(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += self.training
            return self.inner(x) * (float("nan") if self.steps >= 8 else 1.0)

    with pytest.raises(TuneError, match=r"the loss is nan in epoch 2, step 3 of 5 .*last good checkpoint is .*tensors"):
        tune.fit(Breaks(), blobs, quick(), run_dir=tmp_path, checkpoint_seconds=0, progress=False)
    with pytest.raises(TuneError, match="no checkpoint yet"):
        tune.fit(Breaks(), blobs, quick(), progress=False)


def test_a_run_folder_is_not_overwritten_nor_mixed_up(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    tune.fit(small(), blobs, quick(), run_dir=tmp_path, progress=False)
    with pytest.raises(TuneError, match="holds a run already"):
        tune.fit(small(), blobs, quick(), run_dir=tmp_path, progress=False)
    with pytest.raises(TuneError, match=r"lr was 0\.05 and is 0\.5"):
        tune.fit(small(), blobs, quick(lr=0.5), run_dir=tmp_path, resume=True, progress=False)


def test_a_damaged_checkpoint_says_so(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    tune.fit(small(), blobs, quick(), run_dir=tmp_path, progress=False)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(TuneError, match="is damaged"):
        tune.fit(small(), blobs, quick(), run_dir=tmp_path, resume=True, progress=False)


def test_ctrl_c_is_not_lost_in_an_import_that_swallows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(name: str) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        except:  # noqa: E722 - as some of PyTorch's code has it
            pass

    monkeypatch.setattr(interrupt.importlib, "import_module", careless)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupt.import_whole("a_module_that_is_not_there")
    assert signal.getsignal(signal.SIGINT) is before
