"""What measuring changes in the whole process: each for a measured reason, and undone where it can be."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NETWORKS = 256  # that one process may compile


@functools.cache
def keep_memory() -> None:
    """Ask the C library to keep freed memory, as servers' allocators do. Does nothing where there is no glibc.

    Otherwise glibc hands the top of its heap back and takes it again, at layers that depend on every other layer's
    size: thousands of page faults per run, more for one network than for another, that say nothing about either. There
    is no way to ask for the former thresholds, so this stays for the life of the process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(_MMAP_THRESHOLD, 2**25)  # the most that it takes


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
