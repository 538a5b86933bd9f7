"""Networks that take turns on a machine, so that whatever disturbs it disturbs all of them alike."""

from __future__ import annotations

import functools
import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import Inputs
from lcprune.heap import memory_kept
from lcprune.latency.backends import Backend, Runnable
from lcprune.latency.process import no_garbage

_STEADY = 0.005  # of a median: its spread, when no further round is needed
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")

Result = TypeVar("Result")


@memory_kept()
def take_turns(
    backend: Backend,
    models: Mapping[str, nn.Module],
    inputs: Inputs,
    batch: int,
    seconds: float,
    rounds: tuple[int, int] | None = None,
    warmup: int = 2,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, list[float] | None]:
    """Seconds per run of each network, one entry per round; None if it ran out of memory.

    One network is measured after another in every round, until their medians are steady.

    Args:
        models: name -> network, on the backend's device and in evaluation mode.
        inputs: their arguments; repeated to the batch size.
        seconds: least time of one measurement; fast networks run several times in it.
        rounds: fewest and most; None is 5 to 15, fewer for networks that take long.
        warmup: runs before anything is measured.
        tick: called after every round.
    """
    attempt = functools.partial(_if_it_fits, backend.device)
    arguments = attempt(pytree.tree_map, lambda value: batch_of(value, batch, backend.device), inputs)
    runs: dict[str, Runnable] = {}
    once: dict[str, float] = {}
    for name, model in models.items() if arguments is not None else ():
        ready = attempt(_ready, backend, model, arguments, warmup)
        if ready is not None:
            runs[name], once[name] = ready
    repeats = {name: max(1, min(1000, round(seconds / time))) for name, time in once.items()}
    longest = max(once.values(), default=0.0)
    least, most = rounds or ((5, 15) if longest < 0.3 else (3, 5) if longest < 1.5 else (2, 2))
    times: dict[str, list[float]] = {name: [] for name in runs}
    with no_garbage():
        for number in range(1, most + 1):
            for name in list(runs):
                taken = attempt(backend.seconds, runs[name], repeats[name])
                if taken is None:
                    del runs[name]
                else:
                    times[name].append(taken)
            tick()
            if number >= least and all(_spread(times[name]) <= _STEADY for name in runs):
                break
    return {name: times[name] if name in runs else None for name in models}


def batch_of(value: Any, size: int, device: torch.device) -> Any:
    """A tensor's samples, repeated or cut to `size` of them; anything else as it is."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    times = -(-size // value.shape[0])
    return value.to(device).repeat(times, *[1] * (value.dim() - 1))[:size].contiguous()


def _ready(backend: Backend, model: nn.Module, arguments: Inputs, warmup: int) -> tuple[Runnable, float]:
    """A network, warm, and the seconds of one run."""
    run = backend.network(model, arguments)
    backend.seconds(run, max(warmup, 1))
    return run, max(backend.seconds(run, 1), 1e-7)


def _if_it_fits(device: torch.device, do: Callable[..., Result], *given: Any) -> Result | None:
    """What a function gives; None if it runs out of memory."""
    try:
        return do(*given)
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        # The CPU allocator raises a plain RuntimeError.
        if not known and not any(words in str(error).lower() for words in _NO_MEMORY):
            raise
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return 1.25 * deviation / (math.sqrt(len(values)) * middle) if middle else 0.0
