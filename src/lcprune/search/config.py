"""The settings of a search: the paper's values as defaults but for `recalibrate`, departures by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lcprune.errors import SearchError

ALGORITHMS = ("evolution", "random", "cmaes")
FORMS = ("shift", "affine")
PRECISIONS = ("fp32", "tf32", "bf16")
EVALUATORS = ("auto", "slice", "zero")


@dataclass(frozen=True)
class Search:
    """How layer compensations are looked for, and how a candidate is judged.

    Attributes:
        pool: members of the first pool, and of the pool that evolution keeps.
        iterations: mutations after the first pool; `pool + iterations` candidates are judged in all.
        sample: members drawn from the pool (with replacement) to find a parent.
        mutate: share of the layers that one mutation changes, at least one layer.
        redraw: how often a candidate that selects a network already seen in this search may be drawn again, since
            judging that one again says nothing; 0 is the paper's algorithm.
        images: training images that the objective is measured on, drawn once.
        algorithm: "evolution" (the paper's), "random", or "cmaes" (needs the `cma` extra).
        form: "shift" ranks by `metric + beta`; "affine" by `alpha * metric + beta`.
        patience: stop after this many candidates without improvement; None judges them all.
        batch_size: images per forward pass while judging; None chooses.
        evaluator: "slice" builds each smaller network, "zero" silences weights of one copy in place,
            "auto" zeroes on a GPU where that is exact and slices elsewhere.
        precision: arithmetic of candidates: "fp32", "bf16", or "tf32" (on a GPU). Unless it is "fp32", the best
            `finalists` candidates are judged again in fp32 before one is chosen. Candidates that are changed before
            they are judged (`recalibrate`, `tune_steps`, `prepare`) are always judged in fp32.
        finalists: see `precision`.
        recalibrate: re-estimate batch-norm statistics of each candidate before it is judged; "auto" does so at limits
            where naive pruning leaves a network that is no better than guessing, since the loss right after such cuts
            says nothing about the tuned network; it leaves candidates as they are where the network has no such
            statistics or does not answer with one tensor, or with `tune_steps` or `prepare`. False is the paper's
            algorithm.
        tune_steps: SGD steps on the drawn images given to each candidate before it is judged.
        tune_lr: learning rate of these steps.
        together: candidates asked for together and told in the order asked, so that a search is reproducible for a
            given number of them; None asks for as many as the engine has workers, one on a single machine.
        asynchronous: tell each candidate as soon as it is judged and ask for the next: no worker waits for another,
            and the result depends on who was faster.
        prepare: `prepare(model, batches)` changes each candidate in place before it is judged: a user's own
            short tuning. Judged by signed loss difference, since a prepared candidate may beat the network.
    """

    pool: int = 64
    iterations: int = 336
    sample: int = 16
    mutate: float = 0.1
    redraw: int = 0
    images: int = 3000
    algorithm: str = "evolution"
    form: str = "shift"
    patience: int | None = None
    batch_size: int | None = None
    evaluator: str = "auto"
    precision: str = "fp32"
    finalists: int = 8
    recalibrate: bool | str = "auto"
    tune_steps: int = 0
    tune_lr: float = 0.01
    together: int | None = None
    asynchronous: bool = False
    prepare: Callable[[Any, Any], None] | None = None

    def __post_init__(self) -> None:
        for name in ("pool", "sample", "images", "finalists"):
            _at_least(name, getattr(self, name), 1)
        for name in ("iterations", "tune_steps", "redraw"):
            _at_least(name, getattr(self, name), 0)
        for name in ("patience", "batch_size", "together"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if not 0 < self.mutate <= 1:
            raise SearchError(f"mutate={self.mutate!r} is the share of layers to change: more than 0, at most 1")
        if self.tune_steps and not self.tune_lr > 0:
            raise SearchError(f"tune_lr={self.tune_lr!r} must be positive")
        if not isinstance(self.recalibrate, bool) and self.recalibrate != "auto":
            raise SearchError(f'recalibrate={self.recalibrate!r} is not known; choose True, False or "auto"')
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                known = ", ".join(map(repr, allowed))
                raise SearchError(f"{name}={getattr(self, name)!r} is not known; choose one of {known}")

    @property
    def total(self) -> int:
        """Candidates judged when nothing stops the search early."""
        return self.pool + self.iterations

    @property
    def prepares(self) -> bool:
        """Whether candidates are changed before they are judged; what "auto" decides at a limit does not count."""
        return self.recalibrate is True or self.tune_steps > 0 or self.prepare is not None


_CHOICES = {
    "algorithm": ALGORITHMS,
    "form": FORMS,
    "precision": PRECISIONS,
    "evaluator": EVALUATORS,
}


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SearchError(f"{name}={value!r} must be a whole number of at least {least}")
