"""What cells found, as committed JSON: benchmarks/paper/results/KIND.json, cell by cell.

Run folders come and go; `gather` takes over what they record, and everything after it reads the JSON alone.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write
from lcprune.runs import RECORDS
from paper.cells import DONE, percent
from paper.scale import PAPER, Scale

RESULTS = Path(__file__).parent / "results"
KINDS = ("results", "schedule", "search", "metric", "training", "objective")
MISSING = "–"
AGAIN = "-again"  # behind the network in names of cells that began from a baseline trained a second time
Row = dict[str, Any]


class Store:
    """Rows of every kind, by cell, and what is known of each cell.

    Args:
        folder: of the JSON files.
        scale: which cells there can be.
    """

    def __init__(self, folder: Path = RESULTS, scale: Scale = PAPER) -> None:
        self.folder, self.scale, self.network = folder, scale, scale.network
        folder.mkdir(parents=True, exist_ok=True)
        self.cells: dict[str, Row] = _read(folder / "cells.json")
        self.kinds = {kind: {n: unfold(v) for n, v in _read(folder / f"{kind}.json").items()} for kind in KINDS}

    def rows(self, kind: str, *prefixes: str) -> list[Row]:
        """Rows of the cells whose names begin with one of `prefixes`, each with its `cell`."""
        return [
            {**row, "cell": name}
            for name, rows in self.kinds[kind].items()
            for row in rows
            if not prefixes or name.startswith(prefixes)
        ]

    def again(self, network: str) -> list[str]:
        """The network's name in cells, and, if there are such cells, its name in those of its second baseline."""
        second = network + AGAIN
        return [network, *([second] if any(name.startswith(f"{second}/") for name in self.cells) else [])]

    def has(self, name: str) -> bool:
        """Whether a cell is there, from either baseline."""
        network, _, rest = name.partition("/")
        return any(f"{one}/{rest}" in self.cells for one in self.again(network))

    def gather(self, runs: Path, again: bool = False) -> list[str]:
        """Take over every finished cell of a folder of runs; returns their names.

        Args:
            runs: their folder.
            again: whether their baselines are second ones: they do not replace the cells of the first.
        """
        found = []
        for file in sorted(runs.rglob(DONE)):
            folder = file.parent
            name = folder.relative_to(runs).as_posix()
            if again:
                network, _, rest = name.partition("/")
                name = f"{network}{AGAIN}/{rest}"
            about = json.loads(file.read_text(encoding="utf-8"))
            cell = about.pop("cell")
            self.cells[name] = {"kind": cell["kind"], "network": cell["network"], "trial": cell["trial"], **about}
            for kind in KINDS:
                record = folder / RECORDS / f"{kind}.json"
                if record.is_file():
                    self.kinds[kind][name] = json.loads(record.read_text(encoding="utf-8"))
            found.append(name)
        return found

    def save(self) -> None:
        """Write the JSON files."""
        _write(self.folder / "cells.json", self.cells)
        for kind, cells in self.kinds.items():
            if cells:
                _write(self.folder / f"{kind}.json", {name: fold(rows) for name, rows in cells.items()})


def tuned(store: Store, network: str, method: str, limit: float, resource: str = "macs") -> list[Row]:
    """Rows of one network's trials after tuning, in the order of the trials."""
    if method == "each" and limit == min(store.scale.limits):
        method = "lcp"  # the search for the frontier was made there
    wanted = f"{network}/tune/{method}-{percent(limit)}{'' if resource == 'macs' else '-params'}/"
    return sorted(store.rows("results", wanted), key=lambda row: row["seed"])


def before(store: Store, network: str, method: str, limit: float, kind: str = "l2") -> list[Row]:
    """Rows of one network's trials before tuning; `kind` is "l2", or what differs from the usual."""
    if kind != "l2":
        prefix = f"{network}/sweep/{kind}/"
    elif method == "sweep":
        prefix = f"{network}/sweep/l2/"
    elif method == "each" and limit != min(store.scale.limits):
        prefix = f"{network}/each/{percent(limit)}/"
    else:
        prefix = f"{network}/frontier/l2/"
    wanted = "lcp" if method in ("each", "sweep") else method
    return [row for row in store.rows("results", prefix) if (row["method"], row["limit"]) == (wanted, limit)]


def accuracy(rows: Sequence[Row], name: str = "accuracy") -> str:
    """Mean and standard deviation over trials, in percent, with the number of trials."""
    values = [100 * row[name] for row in rows if row.get(name) is not None]
    if not values:
        return MISSING
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} ({len(values)})"


def fold(rows: Sequence[Row]) -> Row:
    """Rows as a small table: what is the same in all of them once, the rest as columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = {n: rows[0][n] for n in names if len(rows) > 1 and all(n in row and row[n] == rows[0][n] for row in rows)}
    columns = [name for name in names if name not in same]
    return {"same": same, "columns": columns, "rows": [[_short(row.get(name)) for name in columns] for row in rows]}


def unfold(table: Row) -> list[Row]:
    """The inverse of `fold`; what a row did not have is None."""
    return [{**table["same"], **dict(zip(table["columns"], row, strict=True))} for row in table["rows"]]


def _short(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _read(path: Path) -> Row:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write(path: Path, cells: Mapping[str, Any]) -> None:
    """One row per line, so that changes can be read."""
    parts = []
    for name, value in sorted(cells.items()):
        if isinstance(value, dict) and set(value) == {"same", "columns", "rows"}:
            rows = ",\n   ".join(json.dumps(row, allow_nan=False) for row in value["rows"])
            head = f'"same": {json.dumps(value["same"])}, "columns": {json.dumps(value["columns"])}'
            parts.append(f' {json.dumps(name)}: {{{head}, "rows": [\n   {rows}]}}')
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}")
    with atomic_write(path) as temporary:
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
