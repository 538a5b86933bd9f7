"""Judging candidates on a cluster: the workers, and the evaluator that hands its work to them."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray  # whoever imports this has asked for a cluster

from lcprune.engine.worker import Answer, Worker
from lcprune.errors import EngineError, first_line
from lcprune.evaluate import Evaluator
from lcprune.search.run import Judged
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.engine.cluster import RayEngine
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

_ATTEMPTS = 3  # a candidate that ends so many workers is at fault itself
_SECONDS_BETWEEN_WARNINGS = 30.0


@dataclass(eq=False)
class Candidate:
    """A selection that is to be judged."""

    case: Any  # reference of a `Case`
    selection: bytes  # one bit per unit
    exact: bool  # in true float32
    attempts: int = 0
    answer: Answer | Exception | None = None
    dropped: bool = False  # nobody waits for it any more


class Crew:
    """Workers on a cluster, as many of them as find a place; each gets the next candidate when it is free.

    A worker that dies takes nothing along: Ray starts it again, where there is room, and its candidate goes to
    whoever is free. So a search goes on with fewer workers while a machine is missing, and with all when it is back.
    """

    def __init__(self, engine: RayEngine) -> None:
        self._engine, self._part = engine, engine.part(engine.workers)
        kind: Any = ray.remote(Worker)
        kind = kind.options(
            num_cpus=self._part.cpus, num_gpus=self._part.gpus, max_restarts=-1, scheduling_strategy="SPREAD"
        )
        self._actors = [kind.remote() for _ in range(engine.workers)]
        self._places = ["?"] * engine.workers
        self._free: deque[int] = deque()
        self._queue: deque[Candidate] = deque()
        self._calls: dict[Any, tuple[int, Candidate | None]] = {}  # what each worker does; None: it is starting
        self._warned = time.monotonic()
        for number in range(engine.workers):
            self._start(number)

    def submit(self, candidate: Candidate) -> None:
        """Have a candidate judged."""
        self._queue.append(candidate)
        self._dispatch()

    def wait(self) -> None:
        """Wait a moment for answers; an `EngineError` if workers cannot be started."""
        done, _ = ray.wait(list(self._calls), timeout=1.0)
        self._engine.listen()
        self._warn_if_nobody_works()
        for call in done:
            number, candidate = self._calls.pop(call)
            if candidate is None:
                self._welcome(number, call)
            else:
                self._take(number, call, candidate)
        self._dispatch()

    def forget(self) -> None:
        """Drop all that was submitted; what is being judged is finished and thrown away."""
        self._queue.clear()
        for _, candidate in self._calls.values():
            if candidate is not None:
                candidate.dropped = True

    def close(self) -> None:
        """End the workers: what they held is free at once."""
        for actor in self._actors:
            ray.kill(actor)

    def _start(self, number: int) -> None:
        # Asked again and again by Ray until the worker is somewhere.
        self._calls[self._actors[number].whereabouts.options(max_task_retries=-1).remote()] = number, None

    def _welcome(self, number: int, call: Any) -> None:
        try:
            self._places[number] = ray.get(call)
        except ray.exceptions.RayError as error:
            raise EngineError(f"worker {number} cannot be started: {first_line(error)}") from None
        logger.info("worker %d is ready (%s)", number, self._places[number])
        self._free.append(number)

    def _take(self, number: int, call: Any, candidate: Candidate) -> None:
        try:
            candidate.answer = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            candidate.answer = own_error(error)  # the worker is well: judging raised something
        except ray.exceptions.RayError as error:
            place, why = self._places[number], first_line(error)
            logger.warning("worker %d (%s) died: its candidate is judged again (%s)", number, place, why)
            self._start(number)
            if candidate.attempts >= _ATTEMPTS:
                candidate.answer = EngineError(
                    f"{_ATTEMPTS} workers died of the same candidate; the last: {why}. Is memory short? "
                    "Try a smaller search.batch_size or fewer workers"
                )
            elif not candidate.dropped:
                self._queue.appendleft(candidate)
            return
        self._free.append(number)

    def _dispatch(self) -> None:
        while self._queue and self._free:
            number, candidate = self._free.popleft(), self._queue.popleft()
            candidate.attempts += 1
            # In a list, so that the worker fetches the case only if it does not hold it.
            what = [candidate.case], candidate.selection, candidate.exact
            call = self._actors[number].loss.remote(f"worker {number}", self._engine.desk, *what)
            self._calls[call] = number, candidate

    def _warn_if_nobody_works(self) -> None:
        idle = all(candidate is None for _, candidate in self._calls.values())
        if idle and time.monotonic() - self._warned > _SECONDS_BETWEEN_WARNINGS:
            self._warned = time.monotonic()
            logger.warning(
                "no worker is at work: the cluster has no room for one (%d cores, %g GPU each); waiting for a machine",
                *self._part,
            )


def own_error(error: Any) -> Exception:
    """What a task raised, as it would have been raised here; its cause has the story of what happened there."""
    if not isinstance(error.cause, Exception):
        return error  # type: ignore[no-any-return]
    error.cause.__cause__ = error
    return error.cause


class CrewEvaluator(Evaluator):
    """Losses of selections, computed by a crew and remembered here; judges several candidates at the same time.

    Args:
        case: reference of a `Case`.
        precision: what candidates are ranked in; None for true float32, whatever the case says.
    """

    def __init__(
        self, graph: ChannelGraph, loss_fn: Any, engine: RayEngine, case: Any, precision: str | None = None
    ) -> None:
        super().__init__(graph, [], loss_fn)
        self.precision = precision or "fp32"
        self._engine, self._case, self._exact = engine, case, precision is None
        self._waiting: dict[int, bytes] = {}  # selections submitted and not collected, by number
        # Those that nobody has collected yet, being judged or judged. They count as known when the first candidate of
        # a selection is collected, so that `cached` does not depend on who was faster.
        self._asked: dict[bytes, Candidate] = {}

    def exactly(self) -> CrewEvaluator:
        return CrewEvaluator(self.graph, self.loss_fn, self._engine, self._case)

    def submit(self, number: int, kept: Kept) -> None:
        """Have a candidate judged; an equal selection is judged once."""
        self._waiting[number] = self._ask(kept)

    def collect(self, number: int | None) -> Judged:
        """Wait for a candidate, or for any."""
        wanted = list(self._waiting) if number is None else [number]
        while not (done := [one for one in wanted if self._is_judged(self._waiting[one])]):
            self._engine.crew.wait()
        selection = self._waiting.pop(done[0])
        cached = selection in self._known
        self.work.hits += cached
        self.work.evaluations += not cached
        if not cached:
            self._known[selection] = self._take(selection)
        return Judged(done[0], self._known[selection], cached)

    def forget(self) -> None:
        """Drop what was submitted and not collected."""
        if self._asked:
            self._engine.crew.forget()
        self._waiting.clear()
        self._asked.clear()

    def compute(self, kept: Kept) -> float:
        selection = self._ask(kept)
        while not self._is_judged(selection):
            self._engine.crew.wait()
        return self._known[selection] if selection in self._known else self._take(selection)

    def _ask(self, kept: Kept) -> bytes:
        selection = self._key(kept)
        if selection not in self._known and selection not in self._asked:
            self._asked[selection] = Candidate(self._case, selection, self._exact)
            self._engine.crew.submit(self._asked[selection])
        return selection

    def _is_judged(self, selection: bytes) -> bool:
        return selection in self._known or self._asked[selection].answer is not None

    def _take(self, selection: bytes) -> float:
        answer = self._asked.pop(selection).answer
        assert answer is not None
        if isinstance(answer, Exception):
            raise answer
        loss, preparing, evaluating = answer
        self.work.preparing += preparing
        self.work.evaluating += evaluating
        return loss if math.isfinite(loss) else math.inf
