"""Several tunings in one process, each on a CUDA stream of its own: a step here, a step there.

A captured step is one launch; the kernels of several networks' steps then run side by side on the device, with
nothing but this process. `fit_in_turns` does what `lcprune.tune.fit` does, step for step and with the same files, as a
generator that yields after every step. For networks without dropout: several would share one random generator.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lcprune.data import Dataset
from lcprune.files import write_json
from lcprune.tune import FitResult, Recipe
from lcprune.tune.distributed import join
from lcprune.tune.fit import _result
from lcprune.tune.log import MetricsLog
from lcprune.tune.run import Run

_STEPS_PER_LOOK = {"cuda": 50, "cpu": 1}


class Lane:
    """A stream of the device; on a CPU, nothing."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which work goes to this stream."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def prepare(self, run: Run, resume: bool) -> None:
        """Prepare a training, and capture its step, for this stream."""
        if self.stream is not None:
            # Captures from one stream would share cuBLAS's workspace, and their replays run at the same time.
            torch.cuda.graph.default_capture_stream = None
            self.stream.wait_stream(torch.cuda.default_stream(self.stream.device))
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            with self():
                run.prepare(resume)
        finally:
            torch.backends.cudnn.benchmark = benchmark

    def finish(self) -> None:
        """Wait until all work of this stream is done."""
        if self.stream is not None:
            self.stream.synchronize()


def fit_in_turns(
    model: nn.Module,
    dataset: Dataset,
    recipe: Recipe,
    folder: Path,
    device: torch.device,
    deadline: float,
    teacher: nn.Module | None = None,
    checkpoint_seconds: float = 60.0,
) -> Generator[None, None, FitResult | None]:
    """Train a network in place, or go on with it, one step per turn.

    Args:
        model: the network; in evaluation mode afterwards.
        dataset: its training split is trained on, its validation split looked at.
        recipe: how.
        folder: as `run_dir` of `fit`.
        device: where.
        deadline: as `time.time` counts; a checkpoint is written there.
        teacher: as for `fit`.
        checkpoint_seconds: least time between checkpoints.

    Returns:
        What training gave, or None if the time was over first. KeyboardInterrupt, thrown in at a turn, writes a
        checkpoint and goes on its way.
    """
    world, lane = join(device), Lane(device)
    run = Run(model, dataset, recipe, folder, teacher, world, 0)
    log = None
    try:
        lane.prepare(run, True)
        place, stepper, steps = run.place, run.stepper, run.feed.steps
        write_json(folder / "recipe.json", recipe.to_json())
        log = MetricsLog(folder, place.history)
        run.saved_at = run.started = time.monotonic()
        run.before = place.seconds
        look = _STEPS_PER_LOOK.get(device.type, 1)
        while place.epoch < recipe.epochs:
            with lane():
                stepper.start(place.epoch, place.step)
            run.epoch_start, run.epoch_first = time.monotonic(), place.step
            while place.step < steps:
                first, position, whole = place.step, place.step, False
                try:
                    while position < min(first + look, steps):
                        with lane():
                            stepper.step(position)
                        position += 1
                        yield
                    whole = True
                finally:  # also when interrupted: then up to here
                    with lane():
                        run._check(stepper.losses[first:position].cpu(), first)
                        place.step = position
                        place.seconds = run.before + time.monotonic() - run.started
                        if not whole:
                            run._save()
                if time.time() > deadline and (place.step < steps or place.epoch + 1 < recipe.epochs):
                    with lane():
                        if place.step == steps:
                            log.write(run._close_epoch(checkpoint_seconds))
                        run._save()
                    return None
            with lane():
                log.write(run._close_epoch(checkpoint_seconds))
        lane.finish()
        run.restore()
        run.finished = True
        return _result(run)
    finally:
        if log is not None:
            log.close()
        lane.finish()
        run.restore()
        model.eval()
        world.leave()
