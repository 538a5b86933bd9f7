"""Networks that take turns on a machine, so that whatever disturbs it disturbs all of them alike."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import Inputs
from lcprune.latency.backends import Backend, Runnable
from lcprune.latency.process import keep_memory, no_garbage

OUT_OF_MEMORY = "out of memory"

_STEADY = 0.005  # of a median: its spread, when no further round is needed


class Turns:
    """Networks that take turns.

    Args:
        seconds: least time of one measurement; fast networks run several times in it.
        tick: called after every round.

    Attributes:
        times: network -> seconds per run, one entry per round.
        errors: network -> why it could not run.
    """

    def __init__(self, backend: Backend, seconds: float, tick: Callable[[], None] = lambda: None) -> None:
        keep_memory()
        self.backend, self.seconds, self.tick = backend, seconds, tick
        self.times: dict[str, list[float]] = {}
        self.errors: dict[str, str] = {}

    def take(
        self,
        models: Mapping[str, nn.Module],
        inputs: Inputs,
        batch: int,
        rounds: tuple[int, int] | None,
        warmup: int = 2,
    ) -> None:
        """Measure networks, one run after another in every round, until their medians are steady.

        Args:
            models: name -> network, on the backend's device and in evaluation mode.
            inputs: their arguments; repeated to the batch size.
            rounds: fewest and most; None is 5 to 15, fewer for networks that take long.
            warmup: runs before anything is measured.
        """
        runs: dict[str, Runnable] = {}
        once: dict[str, float] = {}
        arguments: Inputs = ()
        with self._memory(*models):
            arguments = pytree.tree_map(lambda value: batch_of(value, batch, self.backend.device), inputs)
        for name, model in models.items():
            self.times[name] = []
            if name not in self.errors:
                with self._memory(name):
                    run = self.backend.network(model, arguments)
                    self.backend.seconds(run, max(warmup, 1))
                    once[name], runs[name] = max(self.backend.seconds(run, 1), 1e-7), run
        repeats = {name: max(1, min(1000, round(self.seconds / time))) for name, time in once.items()}
        longest = max(once.values(), default=0.0)
        least, most = rounds or ((5, 15) if longest < 0.3 else (3, 5) if longest < 1.5 else (2, 2))
        with no_garbage():
            for number in range(1, most + 1):
                for name in [name for name in runs if name not in self.errors]:
                    with self._memory(name):
                        self.times[name].append(self.backend.seconds(runs[name], repeats[name]))
                self.tick()
                steady = all(_spread(self.times[name]) <= _STEADY for name in runs if name not in self.errors)
                if number >= least and steady:
                    break

    @contextlib.contextmanager
    def _memory(self, *names: str) -> Iterator[None]:
        """Running out of memory is noted; other errors are raised."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not _no_memory(error):
                raise
            self.errors.update(dict.fromkeys(names, OUT_OF_MEMORY))
            gc.collect()
            if self.backend.device.type == "cuda":
                torch.cuda.empty_cache()


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return 1.25 * deviation / (math.sqrt(len(values)) * middle) if middle else 0.0


def batch_of(value: Any, size: int, device: torch.device | None = None) -> Any:
    """A tensor's samples, repeated or cut to `size` of them; anything else as it is."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    times = -(-size // value.shape[0])
    return value.to(device or value.device).repeat(times, *[1] * (value.dim() - 1))[:size].contiguous()


def _no_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()  # the CPU allocator raises a plain RuntimeError
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
