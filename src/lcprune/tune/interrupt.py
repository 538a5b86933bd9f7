"""Ctrl-C as a request: finish the step, save, leave."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Meanwhile, the first SIGINT only sets the event; the second one acts as it always does."""
    asked = threading.Event()
    # Only the main thread may set handlers; elsewhere Ctrl-C belongs to whoever runs the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def import_whole(name: str) -> None:
    """Import a module, and only then let Ctrl-C act: code in it may swallow KeyboardInterrupt."""
    if name not in sys.modules:
        with interruptions() as interrupt:
            importlib.import_module(name)
        if interrupt.is_set():
            raise KeyboardInterrupt
