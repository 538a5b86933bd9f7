"""What measuring changes in the whole process: each for a measured reason, and undone where it can be."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

_NETWORKS = 256  # that one process may compile


@contextlib.contextmanager
def many_compilations() -> Iterator[None]:
    """Inside, the same code may be compiled for many networks.

    Every cut network has its own shapes, and each counts as a recompilation of the same code: after eight, Dynamo would
    run the next one eagerly without an error.
    """
    settings: Any = torch._dynamo.config
    with settings.patch(recompile_limit=max(settings.recompile_limit, _NETWORKS)):
        yield


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Inside, no garbage is collected: that can take longer than running a network."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
