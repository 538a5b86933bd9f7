"""How a cluster's GPUs and cores are divided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """What one worker holds."""

    cpus: int
    gpus: float


def share(count: int, machines: Sequence[Mapping[str, float]], use_gpus: bool = True) -> Share:
    """What each of `count` workers holds, so that they all fit where that is possible.

    Args:
        machines: resources of each, as Ray reports them: "CPU", "GPU".
    """
    gpus = [machine.get("GPU", 0.0) for machine in machines]
    if use_gpus and sum(gpus) > 0:
        # A GPU is cut into equal parts; a part does not span two of them.
        parts = math.ceil(count / sum(gpus))
        return Share(1, 1.0 if parts <= 1 else 1.0 / parts)
    cores = [int(machine.get("CPU", 0.0)) for machine in machines]
    fit = (cpus for cpus in range(sum(cores) // max(count, 1), 0, -1) if sum(c // cpus for c in cores) >= count)
    return Share(next(fit, 1), 0.0)


def default_workers(machines: Sequence[Mapping[str, float]], use_gpus: bool = True) -> int:
    """One worker per GPU, or per core where there is none."""
    gpus = int(sum(machine.get("GPU", 0.0) for machine in machines))
    cores = int(sum(machine.get("CPU", 0.0) for machine in machines))
    return max(1, gpus if use_gpus and gpus else cores)
