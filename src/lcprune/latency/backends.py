"""Ways to run a network, and how one layer or a whole network is timed under each."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lcprune.errors import LatencyError
from lcprune.latency.measure import keep_memory
from lcprune.latency.operations import Operation

_CACHE = 2**23  # bytes; more than a core's own cache
_SMALL_WEIGHTS = 2**16
BACKENDS = ("eager", "cudagraph", "compile", "onnx")
Name = TypeVar("Name")


@dataclass(frozen=True, eq=False)
class Probe:
    """Something to time.

    Attributes:
        run: runs it.
        calls: how many times, in one run.
        minus: what else `run` does, to be taken off.
    """

    run: Callable[[], Any]
    calls: int = 1
    minus: Callable[[], Any] | None = None


class Backend:
    """PyTorch, one operator after the other, on a CPU; other ways derive from it.

    Args:
        device: where networks run.

    Attributes:
        name: one of `BACKENDS`.
        fusion: which operators it joins, as for `fusion.fuse`.
        launches: whether the host's time to issue operators can be what takes longest.
        moment: seconds of one measurement of a layer, at least.
        hoards: whether everything that is ready to be timed keeps its activations in memory.
    """

    name = "eager"
    fusion = "none"
    launches = False
    moment = 0.002
    hoards = False

    def __init__(self, device: torch.device) -> None:
        keep_memory()
        self.device = device
        self._shared: dict[tuple[int, torch.dtype], Tensor] = {}

    def describe(self) -> dict[str, Any]:
        """What a table measured here belongs to."""
        where: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        return {"device": device_name(self.device), "backend": self.name, "versions": where}

    def layer(self, one: Operation, widths: Sequence[int]) -> Probe:
        """One layer at these widths, ready to be timed: with other weights every time, as in a network."""
        calls = [self._call(one, widths, copy) for copy in range(self._copies(one, widths))]
        turns = itertools.cycle(calls)
        calls[0]()
        return Probe(calls[0] if len(calls) == 1 else lambda: next(turns)())

    def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """A network on `inputs`, ready to be timed."""
        return lambda: model(*inputs)

    def seconds(self, run: Callable[[], Any], repeats: int) -> float:
        """Seconds per run of `repeats` in a row."""
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats

    def release(self) -> None:
        """Let go of the memory that layers shared."""
        self._shared.clear()

    def _copies(self, one: Operation, widths: Sequence[int]) -> int:
        """How many sets of weights push one another out of the fast caches; one where these are next to nothing."""
        if one.kind != "contraction":
            return 1
        size = 4 * sum(math.prod(shape) for shape in one.shapes_at(widths)[1:])
        return 1 if size < _SMALL_WEIGHTS else min(8, 1 + _CACHE // size)

    def _call(self, one: Operation, widths: Sequence[int], copy: int = 0) -> Callable[[], Any]:
        tensors = [
            self._tensor(index if copy == 0 or index == 0 else 8 * copy + index, shape, dtype, order)
            for index, (shape, dtype, order) in enumerate(
                zip(one.shapes_at(widths), one.dtypes, one.orders, strict=True)
            )
        ]
        arguments, named = one.arguments_at(widths, tensors)
        if one.name == "aten::native_batch_norm":
            # What networks call; it chooses between implementations as they do.
            x, weight, bias, mean, variance, training, momentum, epsilon = arguments
            return lambda: torch.batch_norm(
                x, weight, bias, mean, variance, training, momentum, epsilon, torch.backends.cudnn.enabled
            )
        return lambda: one.func(*arguments, **named)

    def _tensor(self, index: int, shape: tuple[int, ...], dtype: torch.dtype, order: Sequence[int]) -> Tensor:
        """A tensor over memory that all layers share, so that a grid of large layers fits."""
        count = math.prod(shape)
        if 2 < index < 8 or not dtype.is_floating_point:
            return torch.ones(shape, dtype=dtype, device=self.device)
        key = (index, dtype)
        if key not in self._shared or self._shared[key].numel() < count:
            self._shared[key] = torch.rand(count, dtype=dtype, device=self.device)
        stored = self._shared[key][:count].view([shape[dim] for dim in order])
        return stored.permute([list(order).index(dim) for dim in range(len(shape))])


class CudaEager(Backend):
    """PyTorch on a GPU: the host issues operators while the GPU works, so that the longer of the two counts.

    Layers are timed inside captured graphs, where the host does not matter.
    """

    launches = True
    moment = 0.0005  # the GPU's own clock is steady

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        # A pool dies with its last graph and cannot be used again: this one lives as long as the backend.
        self._keeper = self._captured(lambda: torch.zeros(1, device=device), 1)

    def describe(self) -> dict[str, Any]:
        found = super().describe()
        found["versions"] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        return found

    def layer(self, one: Operation, widths: Sequence[int]) -> Probe:
        call = self._call(one, widths)
        once = self._eager_seconds(call)
        calls = max(1, min(20, round(2e-4 / once)))
        return Probe(self._captured(call, calls), calls)

    def seconds(self, run: Callable[[], Any], repeats: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize(self.device)
        # Replays are timed on the GPU; where the host issues the operators, its clock counts.
        passed = time.perf_counter() - began
        return (start.elapsed_time(end) / 1000 if isinstance(run, _Replay) else passed) / repeats

    def release(self) -> None:
        super().release()
        torch.cuda.empty_cache()

    def _eager_seconds(self, call: Callable[[], Any]) -> float:
        for _ in range(2):
            call()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize(self.device)
        return max(start.elapsed_time(end) / 1000, 1e-6)

    def _captured(self, call: Callable[[], Any], calls: int) -> Callable[[], Any]:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            call()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # By hand: `torch.cuda.graph` collects garbage first, which takes longer than the rest of a measurement.
        # Captured graphs run one at a time and nobody reads what they write, so they can share their memory.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    call()
            finally:
                graph.capture_end()
        return _Replay(graph, call)


class _Replay:
    """A captured graph, and what it reads, which must stay alive as long as it does."""

    def __init__(self, graph: torch.cuda.CUDAGraph, call: Callable[[], Any]) -> None:
        self._graph, self._call = graph, call

    def __call__(self) -> None:
        self._graph.replay()


class CudaGraph(CudaEager):
    """The whole network captured once and replayed: the GPU's own time."""

    name = "cudagraph"
    launches = False

    def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        return self._captured(lambda: model(*inputs), 1)


def _compiled(base: type[Backend]) -> type[Backend]:
    class Compiled(base):  # type: ignore[misc,valid-type]
        """`torch.compile`: element-wise operators become one pass, and layers are priced like that."""

        name = "compile"
        fusion = "pointwise"

        def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
            # Every cut network has its own shapes, and each counts as a recompilation of the same code.
            settings: Any = torch._dynamo.config
            settings.recompile_limit = max(settings.recompile_limit, 256)
            compiled = torch.compile(model, dynamic=False)
            compiled(*inputs)
            return lambda: compiled(*inputs)

    return Compiled


def make_backend(name: str = "eager", device: str | torch.device | None = None) -> Backend:
    """A backend by name.

    Args:
        name: "eager", "cudagraph" (a captured graph; CUDA only), "compile" or "onnx" (ONNX Runtime on the CPU).
        device: None for the GPU where there is one.

    Raises:
        LatencyError: there is no such backend, or not on this device.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() and name != "onnx" else "cpu"))
    if name not in BACKENDS:
        raise LatencyError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    if name == "onnx":
        from lcprune.latency.onnx import OnnxRuntime

        return OnnxRuntime(torch.device("cpu"))
    cuda = where.type == "cuda"
    if name == "cudagraph" and not cuda:
        raise LatencyError(f"backend 'cudagraph' needs a CUDA device, not {where}; choose 'eager' or 'compile'")
    if name == "cudagraph":
        return CudaGraph(where)
    base = CudaEager if cuda else Backend
    return (base if name == "eager" else _compiled(base))(where)


@torch.inference_mode()
def medians(
    backend: Backend,
    probes: Mapping[Name, Probe],
    *,
    seconds: float = 0.002,
    least: int = 3,
    most: int = 9,
    tolerance: float = 0.02,
) -> dict[Name, float]:
    """Milliseconds of several probes, in turns, repeated until their medians are stable.

    Args:
        backend: what times them.
        probes: by any name.
        seconds: least time of one measurement; short ones run several times in it.
        least: rounds at least.
        most: rounds at most; 0 times each probe once.
        tolerance: a median is stable when its spread, as a share of it, is below this.
    """
    runs = {(name, 0): probe.run for name, probe in probes.items()}
    runs |= {(name, 1): probe.minus for name, probe in probes.items() if probe.minus is not None}
    repeats, times = {}, {}
    with _no_garbage():
        for name, run in runs.items():
            once = max(backend.seconds(run, 1), 1e-7)
            repeats[name] = max(1, min(1000, round(seconds / once)))
            # A run that is long enough is a measurement already.
            times[name] = [once] if repeats[name] == 1 or not most else []
        for number in range(1, most + 1):
            for name, run in runs.items():
                times[name].append(backend.seconds(run, repeats[name]))
            if number >= least and all(_spread(values) <= tolerance for values in times.values()):
                break
    # Of two measurements the lower: what disturbs one makes it longer.
    middle = {name: 1000 * statistics.median_low(values) for name, values in times.items()}
    return {
        # What is left after a subtraction is never nothing.
        name: max(middle[name, 0] - middle.get((name, 1), 0.0), 0.02 * middle[name, 0]) / probe.calls
        for name, probe in probes.items()
    }


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """No garbage is collected meanwhile: with many networks alive, that takes longer than running one."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return 1.25 * deviation / (math.sqrt(len(values)) * middle) if middle else 0.0


def device_name(device: torch.device) -> str:
    """What a person calls the device: the GPU's name, or the CPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _cpu_name()


def _cpu_name() -> str:
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        named = {key.strip(): value.strip() for key, value in lines.items()}
        model = named.get("model name", "")
    except OSError:
        model = ""
    return f"cpu {model or platform.processor() or platform.machine()}".strip()
