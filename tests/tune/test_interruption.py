"""A run that is killed, interrupted or out of time goes on as if nothing had been; a lost one says where."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import killed_training
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lcprune import tune
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune import checkpoint, loop
from lcprune.tune.step import Stepper

Make = Callable[..., nn.Module]
fit = partial(tune.fit, progress=False, device="cpu")  # the same bits need a CPU

SCRIPT = Path(__file__).with_name("killed_training.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("tune") / "whole"
    killed_training.fit(folder)
    return folder


def same_run(folder: Path, whole: Path) -> bool:
    expected, got = (load_file(one / "model.safetensors") for one in (whole, folder))
    lines = [(one / "metrics.jsonl").read_text().count("\n") for one in (whole, folder)]
    return lines == [4, 4] and all(torch.equal(value, got[name]) for name, value in expected.items())


@pytest.mark.parametrize(
    ("place", "count", "every", "kept", "recorded"),
    [
        ("checkpoint", 15, 1e-9, (1, 4), 1),  # one checkpoint a step, ten steps an epoch
        ("record", 2, 0.0, (2, 0), 1),  # one an epoch: it knows of an epoch that the records do not
    ],
)
def test_sigkill_and_resume_give_the_weights_of_an_uninterrupted_run(
    place: str, count: int, every: float, kept: tuple[int, int], recorded: int, whole: Path, tmp_path: Path
) -> None:
    command = [sys.executable, SCRIPT, tmp_path, place, count, every]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert checkpoint.place_in(tmp_path / "checkpoint.safetensors") == kept
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == recorded
    killed_training.fit(tmp_path)
    assert same_run(tmp_path, whole)


def test_sigint_saves_in_the_middle_of_an_epoch_and_leaves(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = Stepper.step, itertools.count(1)

    def interrupted(self: Stepper, position: int) -> None:
        if next(calls) == 15:
            signal.raise_signal(signal.SIGINT)
        step(self, position)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
        patch.setattr(Stepper, "step", interrupted)
        killed_training.fit(tmp_path)
    assert str(caught.value) == f"interrupted in epoch 2, step 5; saved in {tmp_path}"
    assert checkpoint.place_in(tmp_path / "checkpoint.safetensors") == (1, 5)
    killed_training.fit(tmp_path)
    assert same_run(tmp_path, whole)


def quick(**changes: object) -> tune.Recipe:
    return tune.recipe("baseline", **{"epochs": 3, "batch_size": 32, "lr": 0.05, **changes})


def test_out_of_time_is_not_finished_and_can_go_on(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    whole = fit(small(), blobs, quick())
    part = fit(small(), blobs, quick(), run_dir=tmp_path, max_seconds=0.0)
    assert not part.finished
    rest = fit(small(), blobs, quick(), run_dir=tmp_path, resume=True)
    assert rest.finished and len(rest.history) == 3
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.model.state_dict().values(), rest.model.state_dict().values(), strict=True)
    )


def test_a_finished_run_is_read_back(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    first = fit(small(), blobs, quick(), run_dir=tmp_path)
    again = fit(small(), blobs, quick(), run_dir=tmp_path, resume=True)
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
        fit(Breaks(), blobs, quick(), run_dir=tmp_path, checkpoint_seconds=0)
    with pytest.raises(TuneError, match="no checkpoint yet"):
        fit(Breaks(), blobs, quick())


def test_a_run_folder_is_not_overwritten_nor_mixed_up(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    fit(small(), blobs, quick(), run_dir=tmp_path)
    with pytest.raises(TuneError, match="holds a run already"):
        fit(small(), blobs, quick(), run_dir=tmp_path)
    with pytest.raises(TuneError, match=r"lr was 0\.05 and is 0\.5"):
        fit(small(), blobs, quick(lr=0.5), run_dir=tmp_path, resume=True)


def test_a_damaged_checkpoint_says_so(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    fit(small(), blobs, quick(), run_dir=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(TuneError, match="is damaged"):
        fit(small(), blobs, quick(), run_dir=tmp_path, resume=True)


def test_ctrl_c_is_not_lost_in_an_import_that_swallows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(name: str) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        except:  # noqa: E722 - as some of PyTorch's code has it
            pass

    monkeypatch.setattr(loop.importlib, "import_module", careless)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        loop.import_whole("a_module_that_is_not_there")
    assert signal.getsignal(signal.SIGINT) is before
