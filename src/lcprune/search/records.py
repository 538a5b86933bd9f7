"""Records of a search: one JSON line per candidate, written while it runs, replayed to go on from.

The first line says what was searched (`config`) and the scores that candidates were ranked by. Going on with
another configuration is refused. A line that a killed process left half written is dropped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lcprune.errors import SearchError
from lcprune.search.space import FloatArray

_FORMAT = 3
_MAYBE_INFINITE = ("loss", "difference", "best")  # null in the file, which is plain JSON


@dataclass(frozen=True)
class Record:
    """One candidate.

    Attributes:
        iteration: 0 for naive pruning, then counting candidates.
        loss: of the pruned network on the search's images; inf if it was not finite.
        difference: the objective, |L(full) - L(pruned)|, or L(pruned) - L(full) of candidates that were prepared (new
            statistics, tuning) before they were judged; inf likewise.
        beta: the compensation, one number per group (two rows for the affine form).
        counts: kept units per group.
        macs: of the candidate.
        params: of the candidate.
        best: the lowest difference told so far.
        cached: whether an equal selection had been judged before; never of the first.
        seconds: time since the search began, earlier parts of a resumed one counted in.
    """

    iteration: int
    loss: float
    difference: float
    beta: list[Any] = field(repr=False)
    counts: list[int] = field(repr=False)
    macs: float
    params: float
    best: float
    cached: bool
    seconds: float


class History(list[Record]):
    """The records of a search by iteration; a list that prints as one line."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(sorted(records, key=lambda record: record.iteration))

    def __repr__(self) -> str:
        best = min(self, key=lambda record: record.difference, default=None)
        found = "" if best is None else f", the best at {best.iteration} with difference {best.difference:.4g}"
        return f"History({len(self)} candidates{found})"


def best_of(records: Iterable[Record], most: int) -> list[Record]:
    """The records with the least differences, of equal ones the first, no two with the same counts."""
    found: dict[tuple[int, ...], Record] = {}
    for record in sorted(records, key=lambda record: record.difference):
        found.setdefault(tuple(record.counts), record)
    return list(found.values())[:most]


class SearchRecords:
    """An append-only JSONL file of records, or nothing at all if there is no path.

    Raises:
        SearchError: the file holds records and `resume` is False, or they belong to another configuration.
    """

    def __init__(self, path: str | os.PathLike[str] | None, config: Mapping[str, Any], resume: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.config = json.loads(json.dumps(config))
        self.replayed: list[Record] = []  # to go on from, with what units were ranked by and each guide's curves
        self.scores: list[FloatArray] | None = None
        self.curves: list[list[FloatArray]] | None = None
        self._file: Any = None
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            if not resume:
                raise SearchError(
                    f"{self.path} already holds records of a search; pass resume=True to go on from them, "
                    "or name another folder"
                )
            head, self.replayed, whole = _parse(self.path)
            if head:
                _refuse_difference(self.path, head["config"], self.config)
                self.scores = [np.array(own, dtype=np.float64) for own in head["scores"]]
                self.curves = [[np.array(own, dtype=np.float64) for own in kind] for kind in head["curves"]]
            os.truncate(self.path, whole)  # a half-written last line goes

    def start(
        self, scores: Sequence[FloatArray], full_loss: float, curves: Sequence[Sequence[FloatArray]] = ()
    ) -> None:
        """Open the file; a new one gets its first line, with the loss of the network before pruning."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Line buffering hands every record to the system at once: a killed process loses none of them.
        self._file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        if self.scores is None:
            head = {"format": _FORMAT, "config": self.config, "full_loss": _to_json(full_loss)}
            lists = {
                "scores": [own.tolist() for own in scores],
                "curves": [[c.tolist() for c in own] for own in curves],
            }
            self._write({**head, **lists})

    def append(self, record: Record) -> None:
        """Write one record."""
        if self._file is not None:
            line = asdict(record)
            self._write({**line, **{name: _to_json(line[name]) for name in _MAYBE_INFINITE}})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + "\n")


def read_records(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Record]]:
    """The first line of a file and its records by iteration; a last line that was never finished is left out."""
    head, records, _ = _parse(Path(path))
    return head, History(records)


def _parse(path: Path) -> tuple[dict[str, Any], list[Record], int]:
    """First line, records, and the length in bytes of what was written whole."""
    content = path.read_bytes()
    lines = content.split(b"\n")
    whole = len(content) - len(lines.pop())
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append(json.loads(line))
        except ValueError as error:
            raise SearchError(f"{path}, line {number}: not a record; the file is damaged") from error
    if not parsed:
        return {}, [], 0
    if not isinstance(parsed[0], dict) or parsed[0].get("format") != _FORMAT:
        raise SearchError(f"{path} does not hold search records of this version of lcprune")
    for line in parsed[1:]:
        line.update({name: math.inf for name in _MAYBE_INFINITE if line[name] is None})
    return parsed[0], [Record(**line) for line in parsed[1:]], whole


def _to_json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _refuse_difference(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differences = [
        f"{key}: {_short(stored.get(key))} in the records, {_short(wanted.get(key))} now"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
    if differences:
        raise SearchError(
            f"{path} belongs to another search ({'; '.join(differences)}); use the same settings to go on, "
            "or name another folder to start over"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
