"""How long networks take, measured side by side.

All networks take turns in every round, so that a machine that speeds up, slows down or is shared treats them
alike; the figures are medians over rounds, with the quartiles beside them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcprune import bf16
from lcprune.errors import LatencyError
from lcprune.progress import Progress

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class LatencyRecord:
    """Latency of one network at one batch size.

    Attributes:
        model: its name.
        batch_size: images at a time.
        device: what it ran on.
        ms: median milliseconds per batch; None when it could not run.
        ms_per_image: the same per image.
        low: first quartile, milliseconds per image.
        high: third quartile.
        rounds: how many times it was measured.
        error: why there is no figure, e.g. "out of memory".
    """

    model: str
    batch_size: int
    device: str
    ms: float | None
    ms_per_image: float | None
    low: float | None
    high: float | None
    rounds: int
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@torch.inference_mode()
def measure(
    models: Mapping[str, nn.Module],
    example_inputs: Tensor | tuple[Any, ...],
    batch_sizes: Sequence[int] = (1, 4, 16, 64),
    *,
    device: str | torch.device | None = None,
    rounds: int = 15,
    seconds: float = 0.05,
    warmup: int = 3,
    progress: bool = True,
) -> list[LatencyRecord]:
    """Latency of several networks, interleaved, for several batch sizes: the paper's Table 3.

    Args:
        models: name -> network; put back to where and how they were afterwards.
        example_inputs: a tensor or a tuple of arguments; tensors are repeated along their first dimension.
        batch_sizes: images at a time.
        device: None for the GPU where there is one.
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
    keep_memory()
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    for model in models.values():
        bf16.refuse_network(model, where, LatencyError)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    records: list[LatencyRecord] = []
    before = {name: (model.training, _device_of(model)) for name, model in models.items()}
    try:
        for model in models.values():
            model.to(where).eval()
        with Progress("latency", total=len(batch_sizes) * rounds, enabled=progress) as bar:
            for size in batch_sizes:
                records += _cells(models, inputs, size, where, rounds, seconds, warmup, bar)
    finally:
        for name, model in models.items():
            training, home = before[name]
            model.train(training)
            if home is not None:
                model.to(home)
    return records


def _cells(
    models: Mapping[str, nn.Module],
    inputs: tuple[Any, ...],
    size: int,
    device: torch.device,
    rounds: int,
    seconds: float,
    warmup: int,
    bar: Progress,
) -> list[LatencyRecord]:
    times: dict[str, list[float]] = {name: [] for name in models}
    repeats: dict[str, int] = {}
    errors: dict[str, str] = {}
    arguments: tuple[Any, ...] = ()
    try:
        arguments = tuple(batch_of(value, size, device) for value in inputs)
    except (RuntimeError, MemoryError) as error:
        if not _no_memory(error):
            raise
        errors = dict.fromkeys(models, OUT_OF_MEMORY)
    for number in range(rounds + 1):
        for name, model in models.items():
            if name in errors:
                continue
            try:
                if number == 0:
                    repeats[name] = _prepare(lambda m=model: m(*arguments), device, seconds, warmup)  # type: ignore[misc]
                else:
                    times[name].append(_timed(lambda m=model: m(*arguments), repeats[name], device))  # type: ignore[misc]
            except (RuntimeError, MemoryError) as error:
                if not _no_memory(error):
                    raise
                errors[name] = OUT_OF_MEMORY
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        if number:
            bar.advance(batch=size)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return [_record(name, size, label, times[name], errors.get(name)) for name in models]


def _record(name: str, size: int, device: str, times: list[float], error: str | None) -> LatencyRecord:
    if error is not None:
        return LatencyRecord(name, size, device, None, None, None, None, 0, error)
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    to_ms = 1000 / size
    return LatencyRecord(name, size, device, 1000 * middle, middle * to_ms, low * to_ms, high * to_ms, len(times))


def _prepare(run: Callable[[], Any], device: torch.device, seconds: float, warmup: int) -> int:
    """Warm up, and say how many runs fill `seconds`."""
    _timed(run, max(warmup, 1), device)
    once = max(_timed(run, 1, device), 1e-7)
    return max(1, min(1000, round(seconds / once)))


def _timed(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds per run."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_memory() -> None:
    """Ask the C library to keep freed memory, as servers' allocators do.

    Otherwise glibc hands the top of its heap back and takes it again at layers that depend on every other layer's size;
    the page faults that follow make a cut network slower than the whole one. Does nothing where there is no glibc.
    """
    global _KEPT
    if not _KEPT and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
            libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the most that it takes
    _KEPT = True


_KEPT = False


def batch_of(value: Any, size: int, device: torch.device | None = None) -> Any:
    """A tensor's samples, repeated or cut to `size` of them; anything else as it is."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    times = -(-size // value.shape[0])
    return value.to(device or value.device).repeat(times, *[1] * (value.dim() - 1))[:size].contiguous()


def _device_of(model: nn.Module) -> torch.device | None:
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device


def _no_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()  # the CPU allocator raises a plain RuntimeError
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
