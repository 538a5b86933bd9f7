"""Who judges candidates: one evaluator in turn, or several that work at the same time."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from lcprune.evaluate import Evaluator
from lcprune.evaluate.race import Parts, Rival
from lcprune.select import Kept


class Judged(NamedTuple):
    """A candidate's number, its loss, whether an equal selection had been judged before, and its loss part by part."""

    number: int
    loss: float
    cached: bool
    parts: Parts = ()


@runtime_checkable
class Judges(Protocol):
    """What the loop needs of evaluators that work at the same time."""

    def submit(self, number: int, kept: Kept, rival: Rival | None = None) -> None:
        """Let a candidate be judged, as long as it may still beat a rival."""

    def collect(self, number: int | None) -> Judged:
        """Wait for a candidate, or for any if None, and take its loss."""

    def remember(self, kept: Kept, loss: float, parts: Parts = (), stopped: bool = False) -> None:
        """Take a loss from an earlier run as computed, or as estimated when the candidate stopped early."""

    def forget(self) -> None:
        """Drop candidates that were submitted and not collected."""


class InTurn:
    """One judge for all: a candidate is judged when its loss is wanted."""

    def __init__(self, judge: Evaluator) -> None:
        self.judge = judge
        self._waiting: dict[int, tuple[Kept, Rival | None]] = {}

    def submit(self, number: int, kept: Kept, rival: Rival | None = None) -> None:
        self._waiting[number] = kept, rival

    def collect(self, number: int | None) -> Judged:
        number = next(iter(self._waiting)) if number is None else number
        kept, rival = self._waiting.pop(number)
        cached = self.judge.knows(kept)
        return Judged(number, self.judge.loss(kept, rival), cached, self.judge.parts(kept))

    def remember(self, kept: Kept, loss: float, parts: Parts = (), stopped: bool = False) -> None:
        self.judge.remember(kept, loss, parts, stopped)

    def forget(self) -> None:
        self._waiting.clear()
