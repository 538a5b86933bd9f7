"""The results as a table: for Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from lcprune.report.records import is_tuned, summarise
from lcprune.runs import Row
from lcprune.score import Score


def result_table(results: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, one line per network; seeds averaged, columns without any value left out."""
    rows, score = summarise(results), Score.in_rows(results)
    unit = " (%)" if score.percent else ""
    named = "" if score.name == "accuracy" else f"{score.name} "
    tuned = any(is_tuned(row, score) for row in rows)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("network", lambda row: str(row["network"])),
        ("MACs (M)", lambda row: _number(row.get("macs"), 1e-6, 3)),
        ("MACs (%)", lambda row: _number(row.get("macs_share"), 100, 1)),
        ("parameters (M)", lambda row: _number(row.get("params"), 1e-6, 4)),
        (f"{named}as cut{unit}", lambda row: _score(row, "_before", score)),
        (f"{named}repaired{unit}", lambda row: _score(row, "_repaired", score)),
        (f"{named}tuned{unit}" if tuned else score.title, lambda row: _score(row, "", score)),
        ("limit (ms)", lambda row: _number(row.get("latency_limit_ms"), 1, 3)),
        ("predicted (ms)", lambda row: _number(row.get("latency_predicted_ms"), 1, 3)),
        ("original (ms)", lambda row: _number(row.get("latency_original_ms"), 1, 3)),
        ("latency (ms)", lambda row: _number(row.get("latency_ms"), 1, 3)),
        ("trials", lambda row: str(row["trials"]) if row["trials"] > 1 else ""),
    ]
    cells = [[write(row) for _, write in columns] for row in rows]
    used = [i for i in range(len(columns)) if any(line[i] for line in cells)]
    return [columns[i][0] for i in used], [[line[i] for i in used] for line in cells]


def markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A GitHub table, padded so that its source can be read."""
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]

    def line(values: Sequence[str]) -> str:
        padded = [v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(values, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = [("-" * w) if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(header), "| " + " | ".join(rule) + " |", *map(line, cells)]) + "\n"


def csv_text(results: Sequence[Row]) -> str:
    """Every trial with all its digits, for further analysis."""
    plain = (str, int, float, bool, type(None))
    names = list(dict.fromkeys(name for row in results for name, value in row.items() if isinstance(value, plain)))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: row.get(name) for name in names} for row in results)
    return out.getvalue()


def latex(header: Sequence[str], cells: Sequence[Sequence[str]], caption: str = "") -> str:
    """A `booktabs` table."""
    head, *body = (" & ".join(map(_latex, line)) + r" \\" for line in (header, *cells))
    columns = "l" + "r" * (len(header) - 1)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    lines += [*body, r"\bottomrule", r"\end{tabular}"]
    if caption:
        lines.append(rf"\caption{{{_latex(caption)}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _score(row: Row, suffix: str, score: Score) -> str:
    value, deviation = row[score.name + suffix], row[f"{score.name}{suffix}_std"]
    if value is None:
        return ""
    return score.number(value) + (f" ± {score.number(deviation)}" if deviation is not None else "")


def _number(value: float | None, scale: float, digits: int) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def _latex(text: str) -> str:
    special: dict[str, str | int | None] = {c: "\\" + c for c in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    return text.translate(str.maketrans(special))
