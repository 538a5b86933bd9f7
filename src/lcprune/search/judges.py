"""Who judges candidates: one evaluator in turn, or several that work at the same time."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from lcprune.evaluate import Evaluator
from lcprune.select import Kept


class Judged(NamedTuple):
    """A candidate's number, its loss, and whether an equal selection had been judged before."""

    number: int
    loss: float
    cached: bool


@runtime_checkable
class Judges(Protocol):
    """What the loop needs of evaluators that work at the same time."""

    def submit(self, number: int, kept: Kept) -> None:
        """Let a candidate be judged."""

    def collect(self, number: int | None) -> Judged:
        """Wait for a candidate, or for any if None, and take its loss."""

    def remember(self, kept: Kept, loss: float) -> None:
        """Take a loss from an earlier run as computed."""

    def forget(self) -> None:
        """Drop candidates that were submitted and not collected."""


class InTurn:
    """One judge for all: a candidate is judged when its loss is wanted."""

    def __init__(self, judge: Evaluator) -> None:
        self.judge = judge
        self._waiting: dict[int, Kept] = {}

    def submit(self, number: int, kept: Kept) -> None:
        self._waiting[number] = kept

    def collect(self, number: int | None) -> Judged:
        number = next(iter(self._waiting)) if number is None else number
        kept = self._waiting.pop(number)
        cached = self.judge.knows(kept)
        return Judged(number, self.judge.loss(kept), cached)

    def remember(self, kept: Kept, loss: float) -> None:
        self.judge.remember(kept, loss)

    def forget(self) -> None:
        self._waiting.clear()
