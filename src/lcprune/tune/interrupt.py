"""Ctrl-C as a request: finish the step, save, leave."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from types import FrameType
from typing import Any


class InterruptFlag:
    """While active, the first SIGINT only sets `raised`; the second one acts as it always does."""

    def __init__(self) -> None:
        self.raised = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> InterruptFlag:
        # Only the main thread may set handlers; elsewhere Ctrl-C belongs to whoever runs the main thread.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
        signal.signal(signal.SIGINT, self._previous)


def import_whole(name: str) -> None:
    """Import a module, and only then let Ctrl-C act: code in it may swallow KeyboardInterrupt."""
    if name not in sys.modules:
        with InterruptFlag() as interrupt:
            importlib.import_module(name)
        if interrupt.raised:
            raise KeyboardInterrupt
