"""Figures of accuracy: the frontiers, before and after tuning, by epoch.

Each turns records into one chart, or None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lcprune.report.figure import Figure, altair
from lcprune.report.records import Records, summarise
from lcprune.report.theme import WHOLE_NUMBERS, method_scale, network_scale


def frontier_macs(records: Records) -> Figure | None:
    return _frontier(records, "macs", "MACs")


def frontier_params(records: Records) -> Figure | None:
    return _frontier(records, "params", "parameters")


def _frontier(records: Records, resource: str, words: str) -> Figure | None:
    rows = [r for r in summarise(records.results) if r.get("accuracy") is not None and r.get(resource)]
    if not any(row["method"] != "original" for row in rows):
        return None
    alt = altair()
    points = []
    for row in rows:
        spread = row.get("accuracy_std") or 0.0
        points.append(
            {
                "network": row["network"],
                "method": row["method"],
                "size": row[resource] / 1e6,
                "accuracy": 100 * row["accuracy"],
                "low": 100 * (row["accuracy"] - spread),
                "high": 100 * (row["accuracy"] + spread),
                "macs": row["macs"],
                "params": row["params"],
                "trials": row["trials"],
                "line": f"{row.get('run', '')}/{row['method']}",
            }
        )
    colour = alt.Color("method:N", scale=alt.Scale(**method_scale(p["method"] for p in points)), title=None)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X(
            "size:Q",
            title=f"{words} (millions)",
            axis=alt.Axis(tickCount=5),
            scale=alt.Scale(zero=False, nice=True, padding=14),
        ),
        y=alt.Y("accuracy:Q", title="accuracy (%)", scale=alt.Scale(zero=False, nice=True, padding=10)),
    )
    lines = (
        base.transform_filter("datum.method != 'original'")
        .mark_line(strokeWidth=2, opacity=0.75)
        .encode(color=colour, detail="line:N")
    )
    bars = (
        base.transform_filter("datum.trials > 1")
        .mark_rule(strokeWidth=1.5)
        .encode(y=alt.Y("low:Q", title="accuracy (%)"), y2="high:Q", color=colour)
    )
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(
        color=colour,
        shape=alt.condition("datum.method == 'original'", alt.value("diamond"), alt.value("circle")),
        tooltip=[
            alt.Tooltip("network:N"),
            alt.Tooltip("accuracy:Q", format=".2f", title="accuracy (%)"),
            alt.Tooltip("macs:Q", format=".4s", title="MACs"),
            alt.Tooltip("params:Q", format=".4s", title="parameters"),
            alt.Tooltip("trials:Q"),
        ],
    )
    layers = [lines, bars, dots] if any(p["trials"] > 1 for p in points) else [lines, dots]
    chart = alt.layer(*layers).properties(width=430, height=300)
    note = "; bars: one standard deviation" if any(p["trials"] > 1 for p in points) else ""
    return Figure(
        f"frontier_{resource}",
        f"Accuracy against {words}",
        f"{'After tuning, on' if _tuned(rows) else 'On'} held-out data{note}. Further up and to the left is better.",
        chart.to_dict(),
        wide=False,
    )


def _tuned(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of the networks was tuned: the accuracy of one that was not is its accuracy before."""
    both = [(row.get("accuracy_before"), row.get("accuracy")) for row in rows]
    return any(before != after for before, after in both if before is not None and after is not None)


def before_after(records: Records) -> Figure | None:
    summary = summarise(records.results)
    rows = [
        {
            "network": row["network"],
            "method": row["method"],
            "before": 100 * row["accuracy_before"],
            "after": 100 * row["accuracy"],
        }
        for row in summary
        if row.get("accuracy_before") is not None and row.get("accuracy") is not None
    ]
    if not _tuned(summary):
        return None
    alt = altair()
    colour = alt.Color("method:N", scale=alt.Scale(**method_scale(r["method"] for r in rows)), title=None)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("network:N", sort=None, title=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=260)),
        tooltip=[
            alt.Tooltip("network:N"),
            alt.Tooltip("before:Q", format=".2f", title="before tuning (%)"),
            alt.Tooltip("after:Q", format=".2f", title="after tuning (%)"),
        ],
    )
    scale = alt.Scale(zero=False, nice=False, padding=8)
    link = base.mark_rule(strokeWidth=4, opacity=0.35).encode(
        x=alt.X("before:Q", title="accuracy (%)", scale=scale), x2="after:Q", color=colour
    )
    before = base.mark_point(filled=False, size=95, strokeWidth=2, opacity=1).encode(x="before:Q", color=colour)
    after = base.mark_point(filled=True, size=105, opacity=1).encode(x="after:Q", color=colour)
    return Figure(
        "before_after",
        "Accuracy before and after tuning",
        "Open circle: right after pruning. Filled circle: after tuning.",
        (link + before + after).properties(width=640, height=26 * len(rows)).to_dict(),
    )


def training(records: Records) -> Figure | None:
    rows = [row for row in records.training if row.get("accuracy") is not None]
    if not rows:
        return None
    alt = altair()
    values = [{**row, "accuracy": 100 * row["accuracy"]} for row in rows]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X("epoch:Q", title="epoch", scale=alt.Scale(nice=False), axis=alt.Axis(**WHOLE_NUMBERS)),
            y=alt.Y("accuracy:Q", title="validation accuracy (%)", scale=alt.Scale(zero=False, nice=True)),
            color=alt.Color("network:N", sort=None, title=None, scale=alt.Scale(**network_scale(values))),
            tooltip=[
                alt.Tooltip("network:N"),
                alt.Tooltip("epoch:Q"),
                alt.Tooltip("accuracy:Q", format=".2f"),
            ],
        )
        .properties(width=640, height=260)
    )
    return Figure("training", "Training and tuning", "Validation accuracy by epoch.", chart.to_dict())
