"""The C library's memory while networks run on a CPU: what one layer frees stays in the process for the next one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of glibc's mallopt
_MOST = 2**31 - 1
_LARGEST = 2**25  # the most that _MMAP_THRESHOLD takes
_MAPPINGS = 65536  # glibc's _MMAP_MAX

_lock = threading.Lock()
_inside = 0  # calls of `memory_kept` that have not ended


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Inside, freed memory stays in the process, as with servers' allocators. Does nothing where there is no glibc.

    Otherwise glibc hands a feature map of more than a few MB back as soon as it is free, and takes new pages for the
    next one: on images of ImageNet's size that takes longer than the arithmetic. How often it happens depends on the
    sizes of all layers, so that it also makes one network slower than another for nothing.

    Afterwards the memory goes back. There is no way to ask for the former thresholds: they become those that glibc ends
    with by itself in a process that has freed large blocks.
    """
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def trim() -> None:
    """Hand back what is free now."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _change(by: int) -> None:
    global _inside
    with _lock:
        before, _inside = _inside, max(0, _inside + by)
        libc = _glibc()
        if libc is None or min(before, _inside) > 0:
            return
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_MMAP_MAX, 0 if _inside else _MAPPINGS)
        libc.mallopt(_TRIM_THRESHOLD, _MOST if _inside else 2 * _LARGEST)
        if not _inside:
            libc.malloc_trim(0)


def _in_child() -> None:
    """A forked process has none of the threads that are inside, or that hold the lock."""
    global _lock, _inside
    _lock = threading.Lock()
    if _inside:
        _inside = 1
        _change(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@functools.cache
def _glibc() -> Any:
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    return None
