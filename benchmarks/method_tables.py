"""The results of methods.py as the tables of docs/methods.md."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write

FOLDER = Path(__file__).parent / "results"
RESULTS = FOLDER / "methods.json"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
START, SEARCHES, END = "<!-- table: digits -->\n", "<!-- table: searches -->\n", "<!-- end -->"

ORDER = [
    *("uniform", "l1_schedule", "soft", "channel_lasso", "thinet"),  # the same share everywhere, or a schedule by hand
    *("naive", "slimming", "single_filter", "single_filter_fisher"),  # one ranking of the whole network
    *("morphnet", "amc", "lcp"),  # widths that are searched for
]
PUBLISHED = {
    "l1_schedule": "93.04 → 93.06 at 72.4 %",
    "soft": "93.59 → 93.35 at 47.4 %",
    "channel_lasso": "92.8 → 91.8 at 50 %",
    "amc": "92.8 → 91.9 at 50 %",
    "naive": "94.18 → 93.37 at 50 %",
    "lcp": "94.18 → 93.41 at 50 %",
    "single_filter": "94.18 → 93.21 at 72.4 % (LcP paper)",
    "morphnet": "94.18 → 93.51 at 62 % (LcP paper)",
}
_NOTHING = {"clip": "none", "strength": "scaled to the training"}  # what None means


def write(results: dict[str, Any], page: Path = PAGE) -> str:
    """Put the tables of a comparison between the page's marks."""
    return _put(tables(results), START, page)


def write_searches(page: Path = PAGE) -> str:
    """Put the times of all searches that are recorded between the page's marks."""
    return _put(searches(), SEARCHES, page)


def _put(made: str, start: str, page: Path) -> str:
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    after = rest.partition(END)[2]
    with atomic_write(page) as path:
        path.write_text(before + start + "\n" + made + "\n\n" + END + after, encoding="utf-8")
    return made


def searches() -> str:
    """Times of AMC and LcP, one row per machine."""
    lines = [
        "| machine | network, images | LcP | AMC | of it the agent | ratio | accuracy before tuning, LcP / AMC |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in ("cuda", "cpu"):
        file = FOLDER / f"methods-search-{kind}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if "ratio" not in found:  # stopped before both were done
            continue
        lcp, amc = found["lcp"], found["amc"]
        cells = [
            found["machine"] if kind == "cuda" else "CPU, one thread",
            f"`{found['network']}`, {found['images']:,} of {found['data']}",
            *(f"{value:.1f} s" for value in (lcp["seconds"], amc["seconds"], amc["parts"]["agent"])),
            f"{found['ratio']:.1f}",
            " / ".join(f"{100 * one['found']['validation_accuracy']:.1f} %" for one in (lcp, amc)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """What stands between the marks."""
    return "\n\n".join([_methods(results), _error(results), _grids(results)])


def _methods(results: dict[str, Any]) -> str:
    original = next(row for row in results["rows"] if row["method"] == "original")
    lines = [
        "| method | MACs | parameters | before tuning | after tuning | choosing | published, ResNet-56 on CIFAR-10 |",
        "|---|---|---|---|---|---|---|",
        f"| the network | 100 % | 100 % | | {100 * original['accuracy']:.2f} | | |",
    ]
    for method in ORDER:
        rows = [row for row in results["rows"] if row["method"] == method]
        if not rows:
            continue
        trainings = {row["trainings"] for row in rows if "trainings" in row}
        price = f", {min(trainings)} to {max(trainings)} trainings" if trainings else ""
        cells = [
            f"`{method}`",
            f"{100 * statistics.mean(row['macs_share'] for row in rows):.1f} %",
            f"{100 * statistics.mean(row['params_share'] for row in rows):.1f} %",
            _spread([100 * row["accuracy_before"] for row in rows]),
            _spread([100 * row["accuracy"] for row in rows]),
            f"{statistics.mean(row['search_seconds'] for row in rows):.1f} s{price}",
            PUBLISHED.get(method, ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _error(results: dict[str, Any]) -> str:
    images = results["images"]["test"]
    share = statistics.mean(row["accuracy"] for row in results["rows"] if row["method"] != "original")
    error = 100 * math.sqrt(share * (1 - share) / images)
    return (
        f"One of the {images} test images is {100 / images:.2f} points; the standard error of an accuracy of "
        f"{100 * share:.1f} % on so many images is {error:.2f} points, whatever the spread over seeds says."
    )


def _grids(results: dict[str, Any]) -> str:
    """Which settings were tried, and what the validation split said."""
    settings = [("tuning, on `uniform`", results["tuning"])]
    settings += [(f"`{method}`", results["grids"][method]) for method in ORDER if method in results["grids"]]
    lines = [
        "| options of | chosen | validation loss (accuracy) of each setting tried | trainings |",
        "|---|---|---|---|",
    ]
    for title, found in settings:
        tried = "; ".join(f"{_words(one['options'])}: {_judged(one)}" for one in found["tried"])
        trainings = sum(one.get("trainings", 1) for one in found["tried"])
        lines.append(f"| {title} | {_words(found['chosen'])} | {tried} | {trainings} |")
    return "\n".join(lines)


def _judged(one: dict[str, Any]) -> str:
    return "failed" if one["loss"] is None else f"{one['loss']:.3f} ({100 * one['accuracy']:.1f})"


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_NOTHING[name] if value is None else f'{value:g}'}" for name, value in options.items())


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"
