"""What workers say: their log lines appear in the log of the process that started them, with their names."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger("lcprune")

_SECONDS_BETWEEN_LOOKS = 1.0


class LogListener:
    """Hears workers, through a queue that Ray keeps on this machine.

    Args:
        node: this machine's id: the queue must not die with another.
    """

    def __init__(self, node: str) -> None:
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node, soft=False)
        self.queue: Any = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._looked = 0.0

    def listen(self, now: bool = False) -> None:
        """Log what was said since the last time, at most once a second unless `now`."""
        if not now and time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        try:
            heard = self.queue.get_nowait_batch(self.queue.qsize())
        except Exception as error:  # the work goes on, unheard
            logger.debug("workers cannot be heard: %s", error)
            return
        for level, worker, message in heard:
            logger.log(level, "[%s] %s", worker, message)

    def close(self) -> None:
        """Log what is left, and end the queue."""
        with contextlib.suppress(Exception):  # a cluster that is gone says nothing more
            self.listen(now=True)
            self.queue.shutdown(force=True)


@functools.cache
def whereabouts() -> str:
    """The machine and process that this is, e.g. `10.0.0.5, pid 1234`."""
    import ray

    return f"{ray.util.get_node_ip_address()}, pid {os.getpid()}"


@contextlib.contextmanager
def speaking(queue: Any, name: str) -> Iterator[None]:
    """In a worker: send lcprune's log lines to the process that listens."""
    handler = _LogSender(queue, f"{name}, {whereabouts()}")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _LogSender(logging.Handler):
    def __init__(self, queue: Any, speaker: str) -> None:
        super().__init__()
        self.queue, self.speaker = queue, speaker

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # nobody listens any more: the work matters more
            # Not `put_nowait`, which waits for an answer: the main thread of a task must not wait.
            self.queue.actor.put_nowait.remote((record.levelno, self.speaker, record.getMessage()))
