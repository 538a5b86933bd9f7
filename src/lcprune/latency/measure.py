"""How long networks take, measured side by side.

All networks take turns in every round, so that a machine that speeds up, slows down or is shared treats them
alike; the figures are medians over rounds, with the quartiles beside them.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune import bf16
from lcprune.batches import Inputs, arguments
from lcprune.errors import LatencyError
from lcprune.latency.backends import Backend, device_name, make_backend
from lcprune.latency.turns import take_turns
from lcprune.progress import Progress

OUT_OF_MEMORY = "out of memory"

_LARGE = 2**24  # bytes of a network's inputs


@dataclass(frozen=True)
class LatencyRecord:
    """Latency of one network at one batch size, per image; None when it could not run.

    Attributes:
        network: its name.
        batch_size: images at a time.
        device: what it ran on.
        ms: median milliseconds.
        low: first quartile.
        high: third quartile.
        error: why there is no figure, e.g. "out of memory".
    """

    network: str
    batch_size: int
    device: str
    ms: float | None = None
    low: float | None = None
    high: float | None = None
    error: str | None = None


@torch.inference_mode()
def measure(
    models: Mapping[str, nn.Module],
    example_inputs: Any,
    batch_sizes: Sequence[int] = (1, 4, 16, 64),
    *,
    device: str | torch.device | None = None,
    backend: str | Backend = "eager",
    rounds: int = 15,
    seconds: float = 0.05,
    warmup: int = 3,
    progress: bool = True,
) -> list[LatencyRecord]:
    """Latency of several networks, interleaved, for several batch sizes: the paper's Table 3.

    Args:
        models: name -> network; put back to where and how they were afterwards.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments; tensors are repeated along their
            first dimension.
        batch_sizes: images at a time.
        device: None for the GPU where there is one.
        backend: what runs them: one of `BACKENDS`, or a `Backend`.
        rounds: measurements per cell.
        seconds: least time of one measurement; fast networks run several times in it.
        warmup: runs before anything is measured.
        progress: show a bar.

    Returns:
        One record per network and batch size, batch sizes outermost. A network that runs out of memory has a
        record that says so.
    """
    if not models:
        raise LatencyError("no networks to measure")
    if rounds < 1 or any(size < 1 for size in batch_sizes):
        raise LatencyError(f"rounds={rounds}, batch_sizes={tuple(batch_sizes)}: expected positive numbers")
    runner = make_backend(backend, device) if isinstance(backend, str) else backend
    for model in models.values():
        bf16.refuse_network(model, runner.device, LatencyError)
    label = device_name(runner.device) if runner.device.type == "cuda" else str(runner.device)
    inputs = arguments(example_inputs)
    records: list[LatencyRecord] = []
    with _lent(models, runner.device), Progress("latency", len(batch_sizes) * rounds, enabled=progress) as bar:
        for size in batch_sizes:
            tick = functools.partial(bar.advance, batch=size)
            times = take_turns(runner, models, inputs, size, seconds, (rounds, rounds), warmup, tick)
            records += [_record(name, size, label, times[name]) for name in models]
    return records


@torch.inference_mode()
def measure_networks(
    backend: Backend,
    networks: Mapping[str, nn.Module],
    example_inputs: Inputs,
    batch: int,
    rounds: tuple[int, int] | None = None,
) -> dict[str, float]:
    """Milliseconds per batch of whole networks, in turns (unless they are large), until their medians are steady.

    Args:
        backend: what runs them.
        networks: name -> network; put back to where and how they were.
        example_inputs: their arguments; repeated to the batch size.
        batch: samples at a time.
        rounds: fewest and most measurements of each; None is 5 to 15, fewer for networks that take long.

    Raises:
        LatencyError: a network runs out of memory.
    """
    tensors = [value for value in pytree.tree_leaves(example_inputs) if isinstance(value, Tensor)]
    bytes_of_one = sum(value.nbytes / max(1, *value.shape[:1]) for value in tensors)
    alone = backend.hoards and bytes_of_one * batch > _LARGE  # together they would not fit
    found: dict[str, float] = {}
    with _lent(networks, backend.device):
        for part in [{name: model} for name, model in networks.items()] if alone else [networks]:
            for name, times in take_turns(backend, part, example_inputs, batch, backend.moment, rounds).items():
                if times is None:
                    raise LatencyError(f"{OUT_OF_MEMORY} with batch {batch}: choose a smaller batch")
                # Of two measurements the lower: what disturbs one makes it longer.
                found[name] = 1000 * statistics.median_low(times)
    return found


def _record(name: str, size: int, device: str, times: list[float] | None) -> LatencyRecord:
    if times is None:
        return LatencyRecord(name, size, device, error=OUT_OF_MEMORY)
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    to_ms = 1000 / size
    return LatencyRecord(name, size, device, middle * to_ms, low * to_ms, high * to_ms)


@contextlib.contextmanager
def _lent(models: Mapping[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Networks on the device and in evaluation mode; afterwards where and how they were."""
    before = [(model, model.training, next((p.device for p in model.parameters()), None)) for model in models.values()]
    try:
        for model in models.values():
            model.to(device).eval()
        yield
    finally:
        for model, training, home in before:
            model.train(training)
            if home is not None:
                model.to(home)
