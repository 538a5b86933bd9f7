"""Figures of what went on inside: layer schedule, search, metric, latency.

Each turns records into one chart, or None where there is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lcprune.report.figure import Figure, altair
from lcprune.report.records import Records, Row
from lcprune.report.theme import DEPTH_COLOURS, WHOLE_NUMBERS, method_scale, network_scale


def schedule(records: Records) -> Figure | None:
    rows = records.schedule
    if not rows:
        return None
    alt = altair()
    values = [{**row, "share": row["kept"] / row["size"], "layer": row["position"] + 1} for row in rows]
    networks = list(dict.fromkeys(row["network"] for row in values))
    colour = alt.Color("method:N", scale=alt.Scale(**method_scale(r["method"] for r in values)), title=None)
    x = alt.X("layer:O", title="group, in network order", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    tooltip = [
        alt.Tooltip("network:N"),
        alt.Tooltip("group:N"),
        alt.Tooltip("kept:Q"),
        alt.Tooltip("size:Q", title="of"),
        alt.Tooltip("share:Q", format=".0%"),
    ]
    base = alt.Chart().encode(x=x, tooltip=tooltip)
    full = base.mark_bar(color="#8a94a6", opacity=0.25).encode(y=alt.Y("size:Q", title=None))
    kept = base.mark_bar().encode(y=alt.Y("kept:Q", title=None), color=colour)
    chart = (
        alt.layer(full, kept)
        .properties(width=640, height=64)
        .facet(
            row=alt.Row(
                "network:N",
                sort=networks,
                title=None,
                header=alt.Header(labelAngle=0, labelAlign="left", labelLimit=190, labelOrient="left"),
            ),
            data=alt.Data(values=values),
        )
    )
    return Figure(
        "schedule",
        "Layer schedule",
        "How many units each group keeps (coloured) of those it had (grey).",
        chart.to_dict(),
    )


def search(records: Records) -> Figure | None:
    rows = [row for row in records.search if row.get("difference") is not None]
    if not rows:
        return None
    alt = altair()
    networks = list(dict.fromkeys(row["network"] for row in rows))
    # A log axis cannot show zero; the smallest positive value stands for it.
    floor = min((row[k] for row in rows for k in ("difference", "best") if row[k] > 0), default=1e-9)
    values = [{**row, "difference": max(row["difference"], floor), "best": max(row["best"], floor)} for row in rows]
    naive = [
        {"network": name, "iteration": 0, "naive": max(row["naive"], floor)}
        for name in networks
        for row in [next(r for r in rows if r["network"] == name)]
        if row.get("naive") is not None
    ]
    colours = alt.Scale(**network_scale(rows))
    colour = alt.Color("network:N", scale=colours, title=None)
    x = alt.X("iteration:Q", title="candidate", scale=alt.Scale(nice=False), axis=alt.Axis(**WHOLE_NUMBERS))
    y_scale = alt.Scale(type="log", nice=False, padding=10)
    candidates = (
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=16, opacity=0.28)
        .encode(
            x=x,
            y=alt.Y(
                "difference:Q",
                scale=y_scale,
                title="loss difference",
                axis=_decades(alt, values, "difference"),
            ),
            color=colour,
            tooltip=[
                alt.Tooltip("network:N"),
                alt.Tooltip("iteration:Q"),
                alt.Tooltip("difference:Q", format=".4g"),
                alt.Tooltip("best:Q", format=".4g"),
            ],
        )
    )
    best = (
        alt.Chart(alt.Data(values=values))
        .mark_line(interpolate="step-after", strokeWidth=2.2)
        .encode(x=x, y=alt.Y("best:Q", scale=y_scale), color=colour)
    )
    layers = [candidates, best]
    if naive:
        layers.append(
            alt.Chart(alt.Data(values=naive))
            .mark_point(shape="triangle-up", filled=True, size=150, opacity=1)
            .encode(
                x=x,
                y=alt.Y("naive:Q", scale=y_scale),
                color=colour,
                tooltip=[alt.Tooltip("network:N"), alt.Tooltip("naive:Q", format=".4g", title="naive")],
            )
        )
    return Figure(
        "search",
        "Search",
        "Loss difference of every candidate (dots) and of the best so far (line). "
        f"The triangle is naive pruning, i.e. no compensation.{_anew(records, networks)}",
        alt.layer(*layers).properties(width=640, height=300).to_dict(),
    )


def metric(records: Records) -> Figure | None:
    rows = [r for r in records.metric if r.get("score") and r.get("difference")]
    values = [{**row, "difference": abs(row["difference"]), "layer": row["position"] + 1} for row in rows]
    if not values:
        return None
    alt = altair()
    metrics = list(dict.fromkeys(row["metric"] for row in values))
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=30, opacity=0.75)
        .encode(
            x=alt.X(
                "score:Q",
                scale=alt.Scale(type="log", nice=False, padding=8),
                title="metric",
                axis=alt.Axis(tickCount=3, format="~g", grid=False, labelOverlap="greedy", labelSeparation=8),
            ),
            y=alt.Y(
                "difference:Q",
                scale=alt.Scale(type="log", nice=False, padding=8),
                title="true loss difference",
                axis=_decades(alt, values, "difference"),
            ),
            color=alt.Color(
                "layer:Q",
                scale=alt.Scale(range=DEPTH_COLOURS),
                title="group",
                legend=alt.Legend(orient="right", columns=1),
            ),
            tooltip=[
                alt.Tooltip("group:N"),
                alt.Tooltip("unit:Q"),
                alt.Tooltip("score:Q", format=".4g"),
                alt.Tooltip("difference:Q", format=".4g"),
            ],
        )
        .properties(width=640 if len(metrics) == 1 else 620 // len(metrics), height=300)
    )
    if len(metrics) > 1:
        chart = chart.facet(column=alt.Column("metric:N", sort=metrics, title=None)).resolve_scale(x="independent")
    return Figure(
        "metric",
        "Metric against true loss difference",
        "One dot per unit, coloured by group: what the metric says, and how far the loss moves without it. "
        "Groups that form parallel clouds are what a compensation per group can put right.",
        chart.to_dict(),
    )


def latency(records: Records) -> Figure | None:
    rows: list[Row] = [row for row in records.latency if row.get("ms") is not None]
    if not rows:
        return None
    alt = altair()
    networks = list(dict.fromkeys(row["network"] for row in rows))
    values = [{**row, "batch": f"batch {row['batch_size']}"} for row in rows]
    batches = list(dict.fromkeys(row["batch"] for row in sorted(values, key=lambda row: row["batch_size"])))
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("batch:N", sort=batches, title=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("network:N", sort=networks),
    )
    bars = base.mark_bar(cornerRadiusTopLeft=2, cornerRadiusTopRight=2).encode(
        y=alt.Y("ms:Q", title="milliseconds per image"),
        color=alt.Color("network:N", sort=networks, title=None, scale=alt.Scale(**network_scale(rows))),
        tooltip=[
            alt.Tooltip("network:N"),
            alt.Tooltip("batch_size:Q"),
            alt.Tooltip("ms:Q", format=".4g"),
            alt.Tooltip("low:Q", format=".4g"),
            alt.Tooltip("high:Q", format=".4g"),
        ],
    )
    whiskers = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.2)
        .encode(y=alt.Y("low:Q", title="milliseconds per image"), y2="high:Q")
    )
    return Figure(
        "latency",
        "Latency",
        "Median time per image on this machine; whiskers: the middle half of the measurements.",
        (bars + whiskers).properties(width=640, height=260).to_dict(),
    )


def _anew(records: Records, networks: Sequence[str]) -> str:
    found = [row["network"] for row in records.results if row.get("recalibrate") and row["network"] in networks]
    if not found:
        return ""
    return (
        f" Candidates of {', '.join(dict.fromkeys(found))} got new batch-norm statistics before they were judged; "
        "one that is better than the whole network then is drawn at the lowest value."
    )


def _decades(alt: Any, rows: Sequence[Row], name: str) -> Any:
    """An axis with a line at every power of ten, and at 2 and 5 of them where there are few."""
    low, high = (math.log10(choose(row[name] for row in rows)) for choose in (min, max))
    steps = (1,) if high - low > 2 else (1, 2, 5) if high - low > 1 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    stride = max(1, round((high - low) / 7))
    powers = range(math.floor(low) - 1, math.ceil(high) + 1, stride)
    return alt.Axis(values=[step * 10.0**power for power in powers for step in steps], format="~g", labelOverlap=False)
