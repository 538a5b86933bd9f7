"""An evaluator whose work is done by a crew on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lcprune.engine.crew import Crew, Request
from lcprune.evaluate import Evaluator
from lcprune.search import Judged
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph


class CrewEvaluator(Evaluator):
    """Losses of selections, computed elsewhere and remembered here; judges several candidates at the same time.

    Args:
        crew: gives the workers, started when they are first needed.
        case: reference of what they judge with.
        precision: what candidates are ranked in.
        exact: in true float32 instead.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        loss_fn: Callable[..., Any],
        crew: Callable[[], Crew],
        case: Any,
        precision: str = "fp32",
        exact: bool = False,
    ) -> None:
        super().__init__(graph, [], loss_fn)
        self.precision = precision
        self._crew, self._case, self._exact = crew, case, exact
        self._waiting: dict[int, bytes] = {}  # selections submitted and not collected, by number
        self._asked: set[bytes] = set()  # selections being judged
        # Their losses. They count as known when the first candidate of a selection is collected, so that `cached`
        # does not depend on who was faster.
        self._fresh: dict[bytes, float] = {}

    def exactly(self) -> CrewEvaluator:
        """Judges the same images in true float32."""
        return CrewEvaluator(self.graph, self.loss_fn, self._crew, self._case, exact=True)

    def submit(self, number: int, kept: Kept) -> None:
        """Have a candidate judged; an equal selection is judged once."""
        self._waiting[number] = self._ask(kept)

    def collect(self, number: int | None) -> Judged:
        """Wait for a candidate, or for any."""
        wanted = list(self._waiting) if number is None else [number]
        while not (done := [one for one in wanted if self._is_judged(self._waiting[one])]):
            self._finish_one()
        selection = self._waiting.pop(done[0])
        cached = selection in self._known
        if cached:
            self.work.hits += 1
        else:
            self.work.evaluations += 1
            self._known[selection] = self._fresh.pop(selection)
        return Judged(done[0], self._known[selection], cached)

    def forget(self) -> None:
        """Drop what was submitted and not collected."""
        if self._asked:
            self._crew().forget()
        self._waiting.clear()
        self._asked.clear()
        self._fresh.clear()

    def compute(self, kept: Kept) -> float:
        selection = self._ask(kept)
        while not self._is_judged(selection):
            self._finish_one()
        return self._fresh.pop(selection) if selection in self._fresh else self._known[selection]

    def _ask(self, kept: Kept) -> bytes:
        selection = self._key(kept)
        if not self._is_judged(selection) and selection not in self._asked:
            self._asked.add(selection)
            self._crew().submit(Request(self._case, selection, self._exact))
        return selection

    def _is_judged(self, selection: bytes) -> bool:
        return selection in self._known or selection in self._fresh

    def _finish_one(self) -> None:
        request, (loss, preparing, evaluating) = self._crew().next()
        self.work.preparing += preparing
        self.work.evaluating += evaluating
        self._asked.discard(request.selection)
        self._fresh[request.selection] = loss if math.isfinite(loss) else math.inf
