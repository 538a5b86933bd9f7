"""Whether bf16 works on this CPU: tried once per machine, in a process of its own.

Some processors, virtual ones above all, announce instructions that they do not have. PyTorch then chooses kernels that
end the process by a signal, which nobody can catch. So the operators that networks use are tried in a child process
before this one uses any of them, and the verdict is kept in the cache folder.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lcprune.errors import LcpruneError
from lcprune.files import cache_folder, write_json
from lcprune.progress import say_once

logger = logging.getLogger("lcprune")

_WAY = 1  # of trying: verdicts that were found in another way are not taken from the cache
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lcprune import bf16; bf16.main()"
# Signals that say something about the processor; others say that the child was stopped.
_CRASHES = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # which instructions PyTorch may use
_NOT_FOR_CHILDREN = ("PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONSTARTUP", "COVERAGE_PROCESS_START")
SECONDS = 120  # importing PyTorch takes most of it, on a slow disk or a busy machine
_CONVOLUTIONS = (3, 16, 3, 1), (64, 64, 3, 1), (128, 64, 1, 1), (64, 64, 3, 4), (64, 64, 3, 64)
_WAY_OUT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"


def precision_on(precision: str, device: torch.device, error: type[LcpruneError]) -> str:
    """The precision to compute in: "auto" is bf16 where that works, else "fp32", and the log says so once.

    Where it does not work, "bf16" is refused by `error`. Others stay as they are.
    """
    if precision not in ("bf16", "auto"):
        return precision
    why = trouble() if device.type == "cpu" else None
    if why is None:
        return "bf16"
    if precision == "bf16":
        raise error(f'precision="bf16": {why}, or choose precision="fp32"')
    say_once(f"computing in float32: {why}")
    return "fp32"


def refuse_network(model: nn.Module, device: torch.device, error: type[LcpruneError]) -> None:
    """Raise `error` for a network with bf16 weights that would run on a CPU on which they do not work."""
    if device.type == "cpu" and any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):
        why = trouble()
        if why is not None:
            raise error(f"the network's weights are bf16: {why}, or convert the network by model.float()")


def trouble() -> str | None:
    """Why bf16 does not work on this CPU and what to do, in one sentence without its end; None where it works."""
    machine = _machine()
    story = _verdict(json.dumps(machine, sort_keys=True))
    if story is None:
        return None
    name, value = _WAY_OUT
    what = f"bf16 does not work on this CPU ({machine['processor'].get('model name', 'unknown')}): {story}"
    if os.environ.get(name) == value:
        return f"{what}, although {name}={value}; use a newer PyTorch"
    return f"{what}; start Python with {name}={value} in its environment"


@functools.cache
def _verdict(machine: str) -> str | None:
    """What happened on this machine, None if all is well: from the cache folder, or found now."""
    about, place = json.loads(machine), _place(machine)
    try:
        kept = json.loads(place.read_text(encoding="utf-8")) if place is not None else {}
        if kept["machine"] == about:
            return None if kept["works"] else str(kept["story"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
        pass
    story, lasting = _try_in_child()
    logger.info("bf16 was tried on this CPU: %s", story or "it works")
    if lasting and place is not None:
        try:
            write_json(place, {"machine": about, "works": story is None, "story": story or ""})
        except OSError as error:
            logger.info("the verdict is not kept: %s", error)
    return story


def _machine() -> dict[str, Any]:
    """What a verdict belongs to."""
    return {
        "processor": processor(),
        "kernel": platform.release(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        "torch": torch.__version__,
        "way": _WAY,
    }


@functools.cache
def processor() -> dict[str, str]:
    """Model and instruction sets of the first processor."""
    try:
        block = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {"model name": platform.processor() or platform.machine()}
    lines = (line.partition(":") for line in block.splitlines())
    told = {name.strip(): value.strip() for name, _, value in lines}
    flags = told.get("flags", told.get("Features", "")).split()
    chosen = [flag for flag in flags if flag.startswith(("amx", "avx", "fma", "hypervisor", "sve", "bf16"))]
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "CPU implementer", "CPU part")
    return {**{name: told[name] for name in names if name in told}, "flags": " ".join(sorted(chosen))}


def _place(machine: str) -> Path | None:
    digest = hashlib.blake2b(machine.encode(), digest_size=10).hexdigest()
    try:
        return cache_folder("bf16") / f"{digest}.json"
    except RuntimeError:  # there is no home folder
        return None


def _try_in_child() -> tuple[str | None, bool]:
    """Run the trial in a process that shares nothing with this one but its environment and where modules are found.

    Returns:
        What happened, None if all is well, and whether it would happen again: whether it is worth keeping.
    """
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    left = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_CHILDREN}
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, paths],
            env={**left, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            start_new_session=True,  # a Ctrl-C is for this process
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"PyTorch's operators were not done after {SECONDS} s", False
    except (OSError, ValueError) as error:
        return f"no process could be started to try it: {error}", False
    if child.returncode == 0:
        return None, True
    if child.returncode < 0:
        name = _signal_name(-child.returncode)
        return f"PyTorch's operators end the process by {name}", name in _CRASHES
    last = (child.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return f"PyTorch's operators fail: {last[:200]}", False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> None:
    """The child process: exit code 0 if bf16 works."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a process that may well die leaves no core file
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)  # also when nobody is left who waits
    try_operators()


def try_operators() -> None:
    """Run in bf16 what networks are made of, as searches and training do: this may end the process.

    Raises:
        RuntimeError: an operator is missing, or its result is far from that of float32.
    """
    torch.manual_seed(0)
    for layer, x in _layers():
        for layout in (torch.contiguous_format, _channels_last(x)):
            if x.dim() > 3:
                layer.to(memory_format=layout)  # type: ignore[call-overload]
                x = x.contiguous(memory_format=layout)
            with torch.inference_mode():
                expected = layer(x)
                _compare(layer, copy.deepcopy(layer).bfloat16()(x.bfloat16()), expected)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                output = layer(x.requires_grad_())
            output.float().square().mean().backward()
            _compare(layer, output.detach(), expected)
            x = x.detach()
    left, right = torch.randn(2, 4, 64, 64), torch.randn(2, 4, 64, 64)
    _compare("matmul", left.bfloat16() @ right.bfloat16(), left @ right)
    expected = functional.scaled_dot_product_attention(left, right, right)
    left, right = left.bfloat16(), right.bfloat16()
    _compare("attention", functional.scaled_dot_product_attention(left, right, right), expected)


def _layers() -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """Layers of every kind with an input: few channels, and as many as matrix instructions want."""
    for inputs, outputs, rows in ((3, 10, 2), (64, 64, 8), (512, 512, 32)):
        yield nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    for inputs, outputs, taps, groups in _CONVOLUTIONS:
        yield nn.Conv2d(inputs, outputs, taps, padding=taps // 2, groups=groups), torch.randn(4, inputs, 8, 8)
    for groups in (1, 4, 32):
        yield nn.Conv1d(32, 32, 3, groups=groups), torch.randn(2, 32, 32)
        yield nn.Conv3d(32, 32, 3, groups=groups), torch.randn(1, 32, 4, 4, 4)
        yield nn.ConvTranspose1d(32, 32, 2, stride=2, groups=groups), torch.randn(2, 32, 8)
        yield nn.ConvTranspose2d(32, 32, 2, stride=2, groups=groups), torch.randn(2, 32, 8, 8)
        yield nn.ConvTranspose3d(32, 32, 2, stride=2, groups=groups), torch.randn(1, 32, 4, 4, 4)


def _channels_last(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _compare(what: Any, output: torch.Tensor, expected: torch.Tensor) -> None:
    apart = float((output.float() - expected).abs().max() / expected.abs().max())
    if not apart < 0.05:
        raise RuntimeError(f"{what} in bf16 is {apart:.2g} off")
