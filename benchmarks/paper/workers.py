"""Long-lived worker processes: each loads the libraries, the data and the networks once, then does cell after cell.

This file is both sides: `Worker` in the process that hands out cells, `main` in the one that does them. They speak in
lines of JSON; whatever libraries print goes to the worker's log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BENCHMARKS = Path(__file__).resolve().parents[1]

# Starts the driver as a client of MPS would, in a process of its own: where that fails, so would every worker.
_TRY = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
         or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
"""


class Worker:
    """A process that does cells, one after another or a fleet of them at once.

    Args:
        words: of its command line.
        log: file for what it prints.
        environment: its variables.
    """

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = open(log, "ab")  # noqa: SIM115 - lives as long as the process
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=dict(environment),
            text=True,
            start_new_session=True,  # Ctrl-C reaches it through us alone
        )
        self._answers: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._interrupted = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, names: Sequence[str], deadline: float) -> dict[str, str]:
        """Let it do a cell, or several as a fleet; how each ended: "done", "stopped", or what `fleets.do` says."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin
            self.process.stdin.write(json.dumps({"cells": list(names), "deadline": deadline}) + "\n")
            self.process.stdin.flush()
        while True:
            try:
                return self._answers.get(timeout=2)
            except queue.Empty:
                if not self.alive and self._answers.empty():
                    told = "stopped" if self._interrupted else f"lost its worker; see {self.log}"
                    return dict.fromkeys(names, told)

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._answers.put(json.loads(line))

    def interrupt(self) -> None:
        """Ask it to stop what it is doing."""
        self._interrupted = True
        if self.alive:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it."""
        if self.alive:
            self.process.kill()

    def close(self) -> None:
        """Let it go: no more cells."""
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._log.close()


class Mps:
    """NVIDIA's multi-process service, so that kernels of several processes run at the same time.

    Args:
        folder: for its pipes and logs.

    Attributes:
        environment: variables by which processes find it; empty where it cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        if shutil.which("nvidia-cuda-mps-control") is None:
            print("no MPS here: processes take turns on the GPU", flush=True)
            return
        pipes = folder.resolve()
        pipes.mkdir(parents=True, exist_ok=True)
        found = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
        self._everything = {**os.environ, **found}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self._everything, check=False)
        try:
            code = subprocess.run(
                [sys.executable, "-c", _TRY], env=self._everything, check=False, timeout=30
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code == 0:
            self.environment = found
            print("MPS runs", flush=True)
        else:
            print(f"MPS does not work here (code {code}): processes take turns on the GPU", flush=True)
            self.quit()

    def quit(self) -> None:
        """End it."""
        if not hasattr(self, "_everything"):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-cuda-mps-control"], input="quit\n", text=True, env=self._everything, check=False, timeout=10
            )
        del self._everything


# -- the other side ----------------------------------------------------------------------------------------


def main() -> None:
    """Do the cells that are named on standard input, one JSON line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--channels-first", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with contextlib.suppress(KeyboardInterrupt):  # while it loads or waits; cells see to themselves
        import torch

        from paper import fleets
        from paper.cells import registry
        from paper.scale import PAPER, TINY
        from paper.work import Bench

        torch.set_num_threads(1)
        scale = TINY if options.tiny else PAPER
        cells = registry(scale)
        started = time.time()
        bench = Bench(options.data, options.out, scale, options.device, not options.channels_first, options.precision)
        print(f"ready after {time.time() - started:.1f} s", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            outcomes = fleets.do(bench, [cells[name] for name in asked["cells"]], asked["deadline"])
            print(outcomes, flush=True)
            answers.write(json.dumps(outcomes) + "\n")
            answers.flush()


if __name__ == "__main__":
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]
    main()
