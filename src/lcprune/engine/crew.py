"""The actors that judge candidates: each gets the next one when it is free, and Ray restarts those that die."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from lcprune.engine.logs import LogListener
from lcprune.engine.shares import Share
from lcprune.engine.worker import Answer, Worker
from lcprune.errors import EngineError, first_line

logger = logging.getLogger("lcprune")

_ATTEMPTS = 3  # a candidate that ends so many workers is at fault itself
_SECONDS_BETWEEN_WARNINGS = 30.0


@dataclass(eq=False)
class Request:
    """One candidate.

    Attributes:
        case: reference of what it is judged with.
        selection: one bit per unit.
        exact: in true float32.
        attempts: how often it was begun.
        dropped: nobody waits for it any more.
    """

    case: Any
    selection: bytes
    exact: bool = False
    attempts: int = 0
    dropped: bool = False


class Crew:
    """Workers on a cluster, as many of them as find a place.

    A worker that dies takes nothing along: Ray starts it again, where there is room, and its candidate goes to
    whoever is free. So a search goes on with fewer workers while a machine is missing, and with all when it is back.
    """

    def __init__(self, count: int, part: Share, logs: LogListener) -> None:
        import ray

        kind: Any = ray.remote(Worker)
        options = {"num_cpus": part.cpus, "num_gpus": part.gpus, "max_restarts": -1, "scheduling_strategy": "SPREAD"}
        self.logs = logs
        self.part = part
        self._actors = [kind.options(**options).remote() for _ in range(count)]
        self._places: dict[int, str] = {}
        self._free: deque[int] = deque()
        self._starting: dict[Any, int] = {}
        self._calls: dict[Any, tuple[int, Request]] = {}
        self._queue: deque[Request] = deque()
        self._warned = time.monotonic()
        for number in range(count):
            self._await(number)

    def submit(self, request: Request) -> None:
        """Have a candidate judged."""
        self._queue.append(request)
        self._dispatch()

    def next(self) -> tuple[Request, Answer]:
        """Wait for any candidate that was submitted; what `Worker.loss` gave for it.

        Raises:
            EngineError: the workers cannot be started, or the candidate ends them.
            Exception: whatever judging it raised, as it would have been raised here.
        """
        import ray

        while True:
            if not self._calls and not self._queue:
                raise EngineError("no candidate was submitted")
            done, _ = ray.wait([*self._calls, *self._starting], timeout=1.0)
            self.logs.listen()
            self._warn_if_alone()
            for reference in done:
                if reference in self._starting:
                    self._welcome(reference)
                    continue
                number, request = self._calls.pop(reference)
                result = self._result(reference, number, request)
                self._dispatch()
                if result is not None and not request.dropped:
                    return request, result

    def forget(self) -> None:
        """Drop all that was submitted; what is being judged is finished and thrown away."""
        self._queue.clear()
        for _, request in self._calls.values():
            request.dropped = True

    def close(self) -> None:
        """End the workers: what they held is free at once."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def _await(self, number: int) -> None:
        # Asked again and again by Ray until the worker is somewhere.
        self._starting[self._actors[number].ready.options(max_task_retries=-1).remote()] = number

    def _welcome(self, reference: Any) -> None:
        import ray

        number = self._starting.pop(reference)
        try:
            self._places[number] = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise EngineError(f"worker {number} cannot be started: {first_line(error)}") from None
        logger.info("worker %d is ready (%s)", number, self._places[number])
        self._free.append(number)
        self._dispatch()

    def _result(self, reference: Any, number: int, request: Request) -> Answer | None:
        import ray

        try:
            result: Answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            self._free.append(number)  # the worker is well: judging raised something
            if isinstance(error.cause, Exception):
                raise error.cause from error  # which has the story of what happened there
            raise
        except ray.exceptions.RayError as error:
            place = self._places.pop(number, "?")
            logger.warning("worker %d (%s) died: its candidate is judged again (%s)", number, place, first_line(error))
            self._await(number)
            if request.attempts >= _ATTEMPTS:
                raise EngineError(
                    f"{_ATTEMPTS} workers died of the same candidate; the last: {first_line(error)}. Is memory short? "
                    "Try a smaller search.batch_size or fewer workers"
                ) from None
            if not request.dropped:
                self._queue.appendleft(request)
            return None
        self._free.append(number)
        return result

    def _dispatch(self) -> None:
        while self._queue and self._free:
            number, request = self._free.popleft(), self._queue.popleft()
            request.attempts += 1
            # In a list, so that the worker fetches the case only if it does not hold it.
            what = [request.case], request.selection, request.exact
            call = self._actors[number].loss.remote(f"worker {number}", self.logs.queue, *what)
            self._calls[call] = number, request

    def _warn_if_alone(self) -> None:
        if self._calls or time.monotonic() - self._warned < _SECONDS_BETWEEN_WARNINGS:
            return
        self._warned = time.monotonic()
        logger.warning(
            "no worker is at work: the cluster has no room for one (%d cores, %g GPU each); waiting for a machine",
            *self.part,
        )
