"""Plans as people read them: one line, a table as text, the same table for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lcprune.batches import shape_text

if TYPE_CHECKING:
    from lcprune.plan import Plan

COLUMNS = ("channels", "macs", "params")
HEADER = ("layer", "channels", "MACs", "saved", "parameters", "saved")


def headline(plan: Plan) -> str:
    """What a plan saves, in one line."""
    costs = (("MACs", plan.original_macs, plan.macs), ("parameters", plan.original_params, plan.params))
    parts = [(_change((before, after)), words, percent(before, after)) for words, before, after in costs]
    return ", ".join(f"{change} {words}" + ("" if less == "-" else f" ({less})") for change, words, less in parts)


def percent(before: int, after: int) -> str:
    """How much less the second number is."""
    return "-" if before == after or not before else f"-{100 * (before - after) / before:.1f} %"


def plan_rows(plan: Plan) -> list[list[str]]:
    """One line per layer, one for all that is no layer of its own (norms, mostly), and the total."""
    rows = [[name or "(network)", *_cells(*(own[key] for key in COLUMNS))] for name, own in plan.layers.items()]
    total = [(plan.original_macs, plan.macs), (plan.original_params, plan.params)]
    rest = tuple(
        number - sum(own["params"][side] for own in plan.layers.values()) for side, number in enumerate(total[1])
    )
    if plan.layers and any(rest):
        rows.append(["norms and others", *_cells(None, None, (rest[0], rest[1]))])
    return [*rows, ["total", *_cells(None, *total)]]


def plan_text(plan: Plan) -> str:
    """The table, and what stays and why."""
    cells = [list(HEADER), *plan_rows(plan)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADER))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    return "\n".join([_title(plan), "", *map(str.rstrip, lines), *_frozen(plan)])


def plan_html(plan: Plan) -> str:
    """The same for a notebook."""
    frozen = "".join(f"<br>{html.escape(line.strip())}" for line in _frozen(plan) if line)
    return f"<p>{html.escape(_title(plan))}</p>{html_table(HEADER, plan_rows(plan))}<p>{frozen}</p>"


def html_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A plain HTML table; a page's style sheet does the rest."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    rows = [
        f'<tr><th scope="row">{html.escape(first)}</th>{"".join(f"<td>{html.escape(v)}</td>" for v in rest)}</tr>'
        for first, *rest in cells
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _title(plan: Plan) -> str:
    network = plan.meta.get("network", {})
    words = [str(network.get("model") or network.get("class") or "network")]
    if "input_shape" in network:
        words.append(f"inputs of {shape_text(network['input_shape'])}")
    if "method" in plan.meta:
        words.append(f"method {plan.meta['method']}")
    return f"{', '.join(words)}: {headline(plan)}"


def _frozen(plan: Plan) -> list[str]:
    whole = [name for name, own in plan.kept.items() if len(own) == plan.sizes[name]]
    reasons: dict[str, list[str]] = {}
    for name, why in plan.frozen.items():
        reasons.setdefault(why, []).append(name)
    lines = ["", "cannot be cut:"] if reasons else []
    lines += [f"  {', '.join(names)}: {why}" for why, names in reasons.items()]
    return [*lines, "", f"could be cut, and stay whole: {', '.join(whole)}"] if whole else lines


def _cells(channels: tuple[int, int] | None, macs: tuple[int, int] | None, params: tuple[int, int]) -> list[str]:
    cells = ["" if channels is None else _change(channels)]
    for pair in (macs, params):
        cells += ["", ""] if pair is None else [_change(pair), percent(*pair)]
    return cells


def _change(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"
