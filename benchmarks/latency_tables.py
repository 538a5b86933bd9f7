"""Latency records as text: a line per piece, and the tables of docs/how-to/latency.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latency_losses import SHARES, WAYS, over_seeds

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "latency.md"


def with_tables(page: str) -> str:
    """The page with the tables of what was recorded between its markers; nothing there where nothing was."""
    for device in ("cpu", "cuda"):
        file = ROOT / "benchmarks" / "results" / f"latency-{device}.json"
        text = tables(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ""
        start, end = f"<!-- {device} -->\n", f"<!-- end of {device} -->"
        before, _, rest = page.partition(start)
        page = before + start + text + end + rest.partition(end)[2]
    return page


def tables(record: dict[str, Any]) -> str:
    """What was recorded on one device, as Markdown."""
    lines = [
        f"On {record['device']}:",
        "",
        "| network, backend, batch | table: median | 90 % below | MACs: median | 90 % below | whole network (ms) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, piece in record["pieces"].items():
        if name.startswith("prediction"):
            errors_of = [piece[kind][part] for kind in ("error", "error_by_macs") for part in ("median", "p90")]
            cells = [f"{100 * error:.1f} %" for error in errors_of]
            lines.append(f"| {name.removeprefix('prediction ')} | {' | '.join(cells)} | {piece['whole_ms']:.3g} |")
    if not any(name.startswith("loss") for name in record["pieces"]):
        return "\n".join([*lines, "", "Losses have not been measured on this device.", ""])
    lines += [
        "",
        "| network, backend, batch | latency | LcP by latency | LcP by MACs | naive | uniform |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, piece in record["pieces"].items():
        if name.startswith("loss"):
            for share in SHARES:
                cells = [cell(over_seeds(piece["rows"], share, way)) for way in WAYS]
                lines.append(f"| {name.removeprefix('loss ')} | {share:.0%} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def cell(found: dict[str, Any]) -> str:
    """Loss on test images, mean and deviation over seeds, and what share of the original's latency was measured."""
    if "loss" not in found:
        return "cannot be met"
    text = f"{found['loss']:.2f} ± {found['deviation']:.2f}" if found["runs"] > 1 else f"{found['loss']:.2f}"
    notes = [f"{found['measured']:.0%}"]
    notes += [f"{found[kind]} of {found['runs']} {kind}" for kind in ("missed", "cannot") if found[kind]]
    return f"{text} ({', '.join(notes)})"


def summary(found: dict[str, Any]) -> str:
    """A piece in one line."""
    if "error" in found:
        error, macs = found["error"], found["error_by_macs"]
        return (
            f"median {error['median']:.1%}, 90 % below {error['p90']:.1%} "
            f"(MACs: {macs['median']:.1%}, {macs['p90']:.1%}); "
            f"table {found['table_seconds']} s; {found['smallest_ms']:.3g} to {found['whole_ms']:.3g} ms"
        )
    cells = [f"{share:.0%} {way}: {cell(over_seeds(found['rows'], share, way))}" for share in SHARES for way in WAYS]
    return "; ".join(cells)
