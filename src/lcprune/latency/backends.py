"""Ways to run a network, and how one is timed under each."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lcprune.batches import Inputs, call
from lcprune.bf16 import processor
from lcprune.errors import LatencyError
from lcprune.latency.process import many_compilations

BACKENDS = ("eager", "cudagraph", "compile", "onnx")

Runnable = Callable[[], Any]


class Backend:
    """PyTorch, one operator after the other, on a CPU; other ways derive from it.

    Args:
        device: where networks run.

    Attributes:
        name: one of `BACKENDS`, or your own.
        moment: seconds of one measurement, at least.
        hoards: whether every network that is ready to be timed keeps its activations in memory.
    """

    name = "eager"
    moment = 0.02
    hoards = False

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def network(self, model: nn.Module, inputs: Inputs) -> Runnable:
        """A network on `inputs`, ready to be timed."""
        return lambda: call(model, inputs)

    def seconds(self, run: Runnable, repeats: int) -> float:
        """Seconds per run of `repeats` in a row."""
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats


class CudaEager(Backend):
    """PyTorch on a GPU: the host issues operators while the GPU works, so that the longer of the two counts."""

    moment = 0.01

    def seconds(self, run: Runnable, repeats: int) -> float:
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) / repeats


class CudaGraph(Backend):
    """The whole network captured once and replayed: the GPU's own time, by the GPU's own clock."""

    name = "cudagraph"
    moment = 0.005

    def network(self, model: nn.Module, inputs: Inputs) -> Runnable:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            call(model, inputs)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call(model, inputs)
        # What the graph reads must live as long as it does.
        return lambda alive=(model, inputs): graph.replay()  # type: ignore[misc]

    def seconds(self, run: Runnable, repeats: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(end) / 1000 / repeats


class Compiled(Backend):
    """`torch.compile`."""

    name = "compile"

    def network(self, model: nn.Module, inputs: Inputs) -> Runnable:
        compiled = torch.compile(model, dynamic=False)
        with many_compilations():
            call(compiled, inputs)  # compiles; later runs find it
        return lambda: call(compiled, inputs)


class CudaCompiled(Compiled, CudaEager):
    """`torch.compile`, timed as on a GPU."""


def make_backend(name: str = "eager", device: str | torch.device | None = None) -> Backend:
    """A backend by name.

    Args:
        name: "eager", "cudagraph" (a captured graph; CUDA only), "compile" or "onnx" (ONNX Runtime on the CPU).
        device: None for the GPU where there is one.

    Raises:
        LatencyError: there is no such backend, or not on this device.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    check_backend(name)
    if name == "onnx":
        from lcprune.latency.onnx import OnnxRuntime

        return OnnxRuntime()
    cuda = where.type == "cuda"
    if name == "cudagraph" and not cuda:
        raise LatencyError(f"backend 'cudagraph' needs a CUDA device, not {where}; choose 'eager' or 'compile'")
    kinds = {
        "eager": CudaEager if cuda else Backend,
        "cudagraph": CudaGraph,
        "compile": CudaCompiled if cuda else Compiled,
    }
    return kinds[name](where)


def check_backend(name: str) -> str:
    """The name; refused where there is no such backend."""
    if name not in BACKENDS:
        raise LatencyError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return name


def device_name(device: torch.device) -> str:
    """What a person calls the device: the GPU's name, or the CPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {processor().get('model name', platform.machine())}"
