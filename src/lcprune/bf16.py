"""Whether bf16 works on this CPU: tried once per machine, in a process of its own.

Some processors, virtual ones above all, announce instructions that they do not have. PyTorch then chooses kernels that
end the process by a signal, which nobody can catch. So the operators that networks use are tried in a child process
before this one uses any of them, and the verdict is kept in the cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lcprune.bf16_trial import SECONDS
from lcprune.errors import LcpruneError
from lcprune.files import cache_folder, write_json
from lcprune.progress import say_once

logger = logging.getLogger("lcprune")

_WAY = 1  # of trying: verdicts that were found in another way are not taken from the cache
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lcprune import bf16_trial; bf16_trial.main()"
# Signals that say something about the processor; others say that the child was stopped.
_CRASHES = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # which instructions PyTorch may use
_NOT_FOR_CHILDREN = ("PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONSTARTUP", "COVERAGE_PROCESS_START")
_WAY_OUT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"


@dataclass(frozen=True)
class Verdict:
    """What became of the trial.

    Attributes:
        works: all operators ran and gave the right numbers.
        story: what happened otherwise.
        lasting: it would happen again: worth keeping.
    """

    works: bool
    story: str = ""
    lasting: bool = True


def settle(precision: str, device: torch.device, error: type[LcpruneError]) -> str:
    """The precision to compute in.

    Args:
        precision: "bf16" is refused where it does not work; "auto" is bf16 where it works, else "fp32", and the log
            says so once. Others stay as they are.
        device: where to compute.
        error: what to raise.
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
    verdict = _verdict(json.dumps(machine, sort_keys=True))
    if verdict.works:
        return None
    name, value = _WAY_OUT
    what = f"bf16 does not work on this CPU ({machine['processor'].get('model name', 'unknown')}): {verdict.story}"
    if os.environ.get(name) == value:
        return f"{what}, although {name}={value}; use a newer PyTorch"
    return f"{what}; start Python with {name}={value} in its environment"


@functools.cache
def _verdict(machine: str) -> Verdict:
    """The verdict of this machine: known to this process, from the cache folder, or found now."""
    about = json.loads(machine)
    place = _place(machine)
    found = _remembered(place, about)
    if found is None:
        found = _try_in_child()
        logger.info("bf16 was tried on this CPU: %s", "it works" if found.works else found.story)
        if found.lasting and place is not None:
            try:
                write_json(place, {"machine": about, "works": found.works, "story": found.story})
            except OSError as error:
                logger.info("the verdict is not kept: %s", error)
    return found


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


def _remembered(place: Path | None, about: dict[str, Any]) -> Verdict | None:
    """The verdict in a file; None where there is none, or the file is damaged or of another machine."""
    try:
        kept = json.loads(place.read_text(encoding="utf-8")) if place is not None else None
        if isinstance(kept, dict) and kept.get("machine") == about and isinstance(kept.get("works"), bool):
            return Verdict(kept["works"], str(kept["story"]))
    except (OSError, ValueError, KeyError):
        pass
    return None


def _try_in_child() -> Verdict:
    """Run the trial in a process that shares nothing with this one but its environment and where modules are found."""
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
        return Verdict(False, f"PyTorch's operators were not done after {SECONDS} s", lasting=False)
    except (OSError, ValueError) as error:
        return Verdict(False, f"no process could be started to try it: {error}", lasting=False)
    if child.returncode == 0:
        return Verdict(True)
    if child.returncode < 0:
        name = _signal_name(-child.returncode)
        return Verdict(False, f"PyTorch's operators end the process by {name}", lasting=name in _CRASHES)
    last = (child.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return Verdict(False, f"PyTorch's operators fail: {last[:200]}", lasting=False)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
