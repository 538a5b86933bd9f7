"""What a network is worth on data, in the user's own terms: a function with a name and a direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lcprune.errors import ConfigError

HIGHER, LOWER = BETTER = ("higher", "lower")
# Fields of records that a score of the same name would overwrite.
_TAKEN = ("network", "method", "resource", "limit", "seed", "macs", "params", "repair", "after", "score", "epoch")


@dataclass(frozen=True, eq=False)
class Score:
    """By what networks are compared in tables, figures and bars.

    Attributes:
        fn: `fn(output, target)` gives the mean over a batch. For what is no mean over samples: a class whose objects
            have `update(output, target)` and `compute()`, called without arguments for each evaluation, or one such
            object with `reset()` (as torchmetrics has them). None is the loss.
        name: what it is called; the function's own name by default.
        better: "higher" or "lower".
        percent: show 0.71 as 71.00 %.
    """

    fn: Callable[..., Any] | None
    name: str = ""
    better: str = HIGHER
    percent: bool = False

    def __post_init__(self) -> None:
        if self.better not in BETTER:
            raise ConfigError(f"better={self.better!r}: write 'higher' or 'lower'")
        object.__setattr__(self, "name", str(self.name or getattr(self.fn, "__name__", type(self.fn).__name__)))
        if self.name in _TAKEN:
            raise ConfigError(f"a score cannot be called {self.name!r}, as records call something else so")

    @classmethod
    def of(cls, given: Any) -> Score:
        """A score as it is; of a function or class its attributes `name`, `better` and `percent`, where it has them.

        Raises:
            ConfigError: it is neither.
        """
        if isinstance(given, cls):
            return given
        if not callable(given) and not _counts(given):
            raise ConfigError(f"a score is a function (output, target) or a lcprune.Score, not {type(given).__name__}")
        said = {key: getattr(given, key) for key in ("name", "better", "percent") if hasattr(given, key)}
        return cls(given, **said)

    @classmethod
    def in_rows(cls, rows: Any) -> Score:
        """The score that rows of results were judged by, for showing: the first that one names, or accuracy."""
        return next((cls(None, **row["score"]) for row in rows if row.get("score")), ACCURACY)

    def to_json(self) -> dict[str, Any]:
        """What it takes to show it."""
        return {"name": self.name, "better": self.better, "percent": self.percent}

    @property
    def title(self) -> str:
        """Of a column or an axis."""
        return f"{self.name} (%)" if self.percent else self.name

    @property
    def scale(self) -> int:
        """What values are multiplied with to be shown."""
        return 100 if self.percent else 1

    def number(self, value: float) -> str:
        """A value under `title`."""
        return f"{100 * value:.2f}" if self.percent else f"{value:.4g}"

    def text(self, value: float) -> str:
        """A value that stands alone."""
        return f"{self.number(value)} %" if self.percent else self.number(value)

    def worth(self, value: float) -> float:
        """A number that is higher for better networks."""
        return value if self.better == HIGHER else -value

    def meter(self) -> Any:
        """What adds up one evaluation: `update(output, target)` for each batch, then `compute()`."""
        made: Any = self.fn() if isinstance(self.fn, type) else self.fn
        if not _counts(made):
            return _Mean(self.fn)
        if hasattr(made, "reset"):
            made.reset()
        return made


def score_row(score: Score) -> Mapping[str, Any]:
    """What a row of results says of its score; nothing where that is accuracy."""
    return {} if score is ACCURACY else {"score": score.to_json()}


def _counts(made: Any) -> bool:
    return hasattr(made, "update") and hasattr(made, "compute")


class _Mean:
    """The mean of what a function gives for batches, by their sizes."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.total, self.seen = fn, 0.0, 0

    def update(self, output: Any, target: Any) -> None:
        size = _size(target) or _size(output) or 1
        self.total += float(self.fn(output, target)) * size
        self.seen += size

    def compute(self) -> float:
        return self.total / self.seen if self.seen else math.nan


class _Hits:
    """The share of targets that are the class with the highest output; one per image, or per pixel."""

    def __init__(self) -> None:
        self.hits: list[Any] = []
        self.seen = 0

    def update(self, output: Any, target: Any) -> None:
        self.hits.append((output.argmax(1) == target).sum())
        self.seen += target.numel()

    def compute(self) -> float:
        return sum(int(hits) for hits in self.hits) / self.seen if self.seen else math.nan


def _size(value: Any) -> int:
    """Samples of a batch's targets or outputs."""
    from torch.utils import _pytree as pytree

    return next((len(leaf) for leaf in pytree.tree_leaves(value) if getattr(leaf, "ndim", 0)), 0)


ACCURACY = Score(_Hits, "accuracy", percent=True)
LOSS = Score(None, "loss", LOWER)
