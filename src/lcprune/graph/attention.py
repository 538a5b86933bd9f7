"""Attention as a trace runs it: as matrix products, so that every channel can be followed through it.

PyTorch has no other way to ask for that than two switches of the whole process: the fast path of multi-head attention,
and which kernels compute attention. Passes that run at once, in several threads, share them: the first one sets them,
and the last one puts them back. Other code that runs meanwhile gets the same results by slower kernels.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class _Switches:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes = 0
        self._set = contextlib.ExitStack()

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        with self._lock:
            if not self._passes:
                self._set.enter_context(_without_fast_path())
                self._set.enter_context(sdpa_kernel(SDPBackend.MATH))
            self._passes += 1
        try:
            yield
        finally:
            with self._lock:
                self._passes -= 1
                if not self._passes:
                    self._set.close()


@contextlib.contextmanager
def _without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


plain_attention = _Switches().plain
