"""An evaluator whose work is done by a crew on a cluster."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lcprune.engine.crew import Crew, Request
from lcprune.evaluate import Evaluator
from lcprune.search.judges import Judged
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
        self._selections: dict[int, bytes] = {}  # submitted and not collected, by number
        self._requests: dict[bytes, Request] = {}  # being judged, by selection
        self._done: deque[int] = deque()  # judged and not collected
        # Losses of these. They count as known when the first candidate of a selection is collected, so that
        # `cached` does not depend on who was faster.
        self._fresh: dict[bytes, float] = {}

    def exactly(self) -> CrewEvaluator:
        """Judges the same images in true float32."""
        return CrewEvaluator(self.graph, self.loss_fn, self._crew, self._case, exact=True)

    def submit(self, number: int, kept: Kept) -> None:
        """Have a candidate judged; an equal selection is judged once."""
        selection = self._key(kept)
        self._selections[number] = selection
        if selection in self._known or selection in self._fresh:
            self._done.append(number)
        elif selection not in self._requests:
            self._requests[selection] = Request(self._case, selection, self._exact)
            self._crew().submit(self._requests[selection])

    def collect(self, number: int | None) -> Judged:
        """Wait for a candidate, or for any."""
        while not self._done if number is None else number not in self._done:
            self._finish_one()
        number = self._done[0] if number is None else number
        self._done.remove(number)
        selection = self._selections.pop(number)
        cached = selection in self._known
        if cached:
            self.work.hits += 1
        else:
            self.work.evaluations += 1
            self._known[selection] = self._fresh.pop(selection)
        return Judged(number, self._known[selection], cached)

    def forget(self) -> None:
        """Drop what was submitted and not collected."""
        if self._requests:
            self._crew().forget()
        self._selections.clear()
        self._requests.clear()
        self._fresh.clear()
        self._done.clear()

    def _finish_one(self) -> None:
        request, (loss, preparing, evaluating) = self._crew().next()
        self.work.preparing += preparing
        self.work.evaluating += evaluating
        self._requests.pop(request.selection)
        self._fresh[request.selection] = loss if math.isfinite(loss) else math.inf
        self._done.extend(number for number, key in self._selections.items() if key == request.selection)

    def compute(self, kept: Kept) -> float:
        crew = self._crew()
        crew.submit(Request(self._case, self._key(kept), self._exact))
        _, (loss, preparing, evaluating) = crew.next()
        self.work.preparing += preparing
        self.work.evaluating += evaluating
        return loss
