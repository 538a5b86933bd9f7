"""The results of search.py as the tables of docs/performance.md.

python benchmarks/search_tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
NETWORKS = {"resnet56": "ResNet-56", "torchvision:resnet50": "ResNet-50, 224 x 224"}
NETWORKS |= {"torchvision:mobilenet_v2": "MobileNetV2, 224 x 224"}
VARIANTS = {
    "zero": "joined convolutions, channels last",
    "zero+plain": "PyTorch's convolutions",
    "slice": "smaller networks, a batch per core",
    "rebuild": "copy, cut, run",
    "mask": "full size, masks",
}

Row = dict[str, Any]


def rows(kind: str) -> list[Row]:
    """What `search.py` measured on one kind of device."""
    path = RESULTS / f"search-{kind}.json"
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return found


def table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [head, ("---",) * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(row: Row) -> tuple[str, ...]:
    planning, preparing, evaluating = row["planning_s"], row["preparing_s"], row["evaluating_s"]
    other = row["total_s"] - planning - preparing - evaluating
    return tuple(f"{value:.2f}" for value in (row["total_s"], planning, preparing, evaluating, other))


def _precision(row: Row) -> str:
    return {"fp32": "float32", "bf16": "bf16, finalists in float32", "tf32": "TF32, finalists in float32"}[
        row["precision"]
    ]


def base(kind: str) -> str:
    """The base search in every variant, with where the time goes and how accurate the losses are."""
    return table(
        (
            "candidates judged by",
            "precision",
            "s",
            "planning",
            "preparing",
            "evaluating",
            "other",
            "error",
            "difference",
        ),
        [
            (
                VARIANTS[row["variant"]],
                _precision(row),
                *_times(row),
                f"{row['error']:.0e}",
                f"{row['difference']:.5f}",
            )
            for row in basic(kind)
        ],
    )


def basic(kind: str) -> list[Row]:
    """Rows of the base search, in every variant."""
    found = [row for row in rows(kind) if row["variant"] in VARIANTS]
    same = ("network", "macs", "candidates", "images", "batch_size")
    return [row for row in found if all(row[name] == found[0][name] for name in same)]


def batches(kind: str = "cuda") -> str:
    """Images per pass."""
    found = [row for row in rows(kind) if row["network"] == "resnet56" and row["candidates"] == 100]
    chosen = {row["batch_size"]: row for row in found if row["precision"] == "bf16" and row["images"] == 3000}
    return table(
        ("images per pass", "bf16, ms each"),
        [(f"{size:,}", f"{1e3 * row['evaluating_s'] / row['evaluations']:.1f}") for size, row in chosen.items()],
    )


def repaired(kind: str = "cuda") -> str:
    """Searches that judge candidates after repair."""
    body = [
        (NETWORKS[row["network"]], f"{row['candidates']:,}", f"{row['images']:,}", _precision(row), *_times(row))
        for row in rows(kind)
        if row["variant"] == "repair"
    ]
    head = ("network", "candidates", "images", "precision", "s", "planning", "preparing", "evaluating", "other")
    return table(head, body)


def growth(kind: str = "cuda") -> str:
    """One thing changed at a time."""
    body = []
    for row in rows(kind):
        if row["variant"] != "zero" or row["precision"] != "fp32":
            continue
        both = (row, _partner(rows(kind), row))
        body.append(
            (
                NETWORKS[row["network"]],
                f"{row['macs']:.0%}".replace("%", " %"),
                f"{row['candidates']:,}",
                f"{row['evaluations']:,}",
                f"{row['images']:,}",
                *("–" if one is None else f"{one['total_s']:.1f}" for one in both),
                *("–" if one is None else f"{1e3 * one['evaluating_s'] / one['evaluations']:.1f}" for one in both),
            )
        )
    head = (
        "network",
        "MACs",
        "candidates",
        "distinct",
        "images",
        "float32, s",
        "bf16, s",
        "float32, ms each",
        "bf16, ms each",
    )
    return table(head, body)


def ratios(kind: str = "cpu") -> str:
    """Both baselines over ours, in one run."""
    found = {(row["variant"], row["precision"]): row["total_s"] for row in rows(kind) if row["variant"] in VARIANTS}
    best = min((value for (variant, _), value in found.items() if variant in ("rebuild", "mask")), default=0.0)
    return table(
        ("candidates judged by", "precision", "s", "times the better baseline"),
        [
            (VARIANTS[variant], _precision({"precision": precision}), f"{value:.1f}", f"{best / value:.2f}")
            for (variant, precision), value in found.items()
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    "gpu": lambda: base("cuda"),
    "growth": growth,
    "repair": repaired,
    "batches": batches,
    "cpu": ratios,
}


def refresh(page: str) -> str:
    """The page with every table between its marks made anew."""

    def made(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)


def _partner(found: list[Row], row: Row) -> Row | None:
    """The same search in bf16, of one in float32."""
    same = ("network", "macs", "candidates", "images", "batch_size", "variant")
    alike = (one for one in found if all(one[name] == row[name] for name in same))
    return next((one for one in alike if one["precision"] == "bf16"), None)


if __name__ == "__main__":
    made = refresh(PAGE.read_text(encoding="utf-8"))
    with atomic_write(PAGE) as path:
        path.write_text(made, encoding="utf-8")
