"""Figures of what went on inside: layer schedule, search, metric, latency.

Each turns records into one chart, or None where there is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lcprune.report.figure import (
    DEPTH_COLOURS,
    WHOLE_NUMBERS,
    Figure,
    chart,
    concat,
    field,
    layer,
    method_scale,
    network_scale,
    tip,
)
from lcprune.report.records import Records
from lcprune.runs import Row


def schedule(records: Records) -> Figure | None:
    rows = [{**r, "share": r["kept"] / r["size"]} for r in records.schedule]
    if not rows:
        return None
    axis = {"labelAngle": -90, "labelOverlap": True, "labelLimit": 130, "labelFontSize": 10}
    order = _distinct(sorted(rows, key=lambda row: row["position"]), "group")
    shared = {
        "x": field("group:N", sort=order, title=None, axis=axis),
        "tooltip": [tip("network:N"), tip("group:N"), tip("kept:Q"), tip("size:Q", "of"), tip("share:Q", form=".0%")],
    }
    colour = field("method:N", scale=method_scale(row["method"] for row in rows), title=None)
    layers = [
        layer("bar", {**shared, "y": field("size:Q", title=None)}, color="#8a94a6", opacity=0.25),
        layer("bar", {**shared, "y": field("kept:Q", title=None), "color": colour}),
    ]
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 2}
    spec = concat(
        data={"values": rows},
        facet={"row": field("network:N", sort=_distinct(rows, "network"), title=None, header=header)},
        spec={"width": 640, "height": 64, "layer": layers},
        spacing=10,
    )
    caption = "How many units each group keeps (coloured) of those it had (grey)."
    return Figure("schedule", "Layer schedule", caption, spec)


def search(records: Records) -> Figure | None:
    rows = [row for row in records.search if row.get("difference") is not None]
    if not rows:
        return None
    # A log axis cannot show zero; the smallest positive value stands for it.
    floor = min((row[k] for row in rows for k in ("difference", "best") if row[k] > 0), default=1e-9)
    values = [{**row, "difference": max(row["difference"], floor), "best": max(row["best"], floor)} for row in rows]
    naive: dict[str, Row] = {}
    for row in rows:
        if row.get("naive") is not None:
            first = {"network": row["network"], "iteration": 0, "naive": max(row["naive"], floor)}
            naive.setdefault(row["network"], first)
    networks = _distinct(rows, "network")
    shared = {
        "x": field("iteration:Q", title="candidate", scale={"nice": False}, axis=WHOLE_NUMBERS),
        "color": field("network:N", scale=network_scale(rows), title=None),
    }
    scale = {"type": "log", "nice": False, "padding": 10}
    candidate = {
        **shared,
        "y": field("difference:Q", scale=scale, title="loss difference", axis=_decades(values)),
        "tooltip": [tip("network:N"), tip("iteration:Q"), tip("difference:Q", form=".4g"), tip("best:Q", form=".4g")],
    }
    layers = [
        layer("point", candidate, filled=True, size=16, opacity=0.28),
        layer("line", {**shared, "y": field("best:Q", scale=scale)}, interpolate="step-after", strokeWidth=2.2),
    ]
    if naive:
        tooltip = [tip("network:N"), tip("naive:Q", "naive", ".4g")]
        triangle = {**shared, "y": field("naive:Q", scale=scale), "tooltip": tooltip}
        mark = layer("point", triangle, shape="triangle-up", filled=True, size=150, opacity=1)
        layers.append({"data": {"values": [naive[name] for name in networks if name in naive]}, **mark})
    return Figure(
        "search",
        "Search",
        "Loss difference of every candidate (dots) and of the best so far (line). "
        f"The triangle is naive pruning, i.e. no compensation.{_prepared(records, networks)}",
        chart(values, 640, 300, layer=layers),
    )


def metric(records: Records) -> Figure | None:
    values = [
        {**row, "difference": abs(row["difference"]), "layer": row["position"] + 1}
        for row in records.metric
        if row.get("score") and row.get("difference")
    ]
    if not values:
        return None
    metrics = _distinct(values, "metric")
    scale = {"type": "log", "nice": False, "padding": 8}
    ticks = {"tickCount": 3, "format": "~g", "grid": False, "labelOverlap": "greedy", "labelSeparation": 8}
    legend = {"orient": "right", "columns": 1}
    encoding = {
        "x": field("score:Q", scale=scale, title="metric", axis=ticks),
        "y": field("difference:Q", scale=scale, title="true loss difference", axis=_decades(values)),
        "color": field("layer:Q", scale={"range": DEPTH_COLOURS}, title="group", legend=legend),
        "tooltip": [tip("group:N"), tip("unit:Q"), tip("score:Q", form=".4g"), tip("difference:Q", form=".4g")],
    }
    dots = layer("point", encoding, filled=True, size=30, opacity=0.75)
    if len(metrics) == 1:
        spec = chart(values, 640, 300, **dots)
    else:
        spec = concat(
            data={"values": values},
            facet={"column": field("metric:N", sort=metrics, title=None)},
            spec={"width": 620 // len(metrics), "height": 300, **dots},
            resolve={"scale": {"x": "independent"}},
        )
    return Figure(
        "metric",
        "Metric against true loss difference",
        "One dot per unit, coloured by group: what the metric says, and how far the loss moves without it. "
        "Groups that form parallel clouds are what a compensation per group can put right.",
        spec,
    )


def latency(records: Records) -> Figure | None:
    rows = [{**r, "batch": f"batch {r['batch_size']}"} for r in records.latency if r.get("ms") is not None]
    if not rows:
        return None
    networks, batches = _distinct(rows, "network"), _distinct(sorted(rows, key=lambda row: row["batch_size"]), "batch")
    shared = {
        "x": field("batch:N", sort=batches, title=None, axis={"labelAngle": 0}),
        "xOffset": field("network:N", sort=networks),
    }
    title, times = "milliseconds per image", [tip(f"{key}:Q", form=".4g") for key in ("ms", "low", "high")]
    bar = {
        **shared,
        "y": field("ms:Q", title=title),
        "color": field("network:N", sort=networks, title=None, scale=network_scale(rows)),
        "tooltip": [tip("network:N"), tip("batch_size:Q"), *times],
    }
    whisker = {**shared, "y": field("low:Q", title=title), "y2": {"field": "high"}}
    layers = [
        layer("bar", bar, cornerRadiusTopLeft=2, cornerRadiusTopRight=2),
        layer("rule", whisker, "isValid(datum.low)", strokeWidth=1.2),
    ]
    caption = "Median time per image on this machine; whiskers: the middle half of the measurements."
    return Figure("latency", "Latency", caption, chart(rows, 640, 260, layer=layers))


def _distinct(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _prepared(records: Records, networks: Sequence[str]) -> str:
    words = {"repair": "were repaired", "statistics": "got new batch-norm statistics"}
    done = [words[row["after"]] for row in records.results if row["network"] in networks and row.get("after") in words]
    if not done:
        return ""
    said = " or ".join(dict.fromkeys(done))
    return (
        f" Candidates {said} before they were judged; one better than the whole network is drawn at the lowest value."
    )


def _decades(rows: Sequence[Row]) -> dict[str, Any]:
    """An axis with a line at every power of ten, and at 2 and 5 of them where there are few."""
    low, high = (math.log10(choose(row["difference"] for row in rows)) for choose in (min, max))
    steps = (1,) if high - low > 2 else (1, 2, 5) if high - low > 1 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    stride = max(1, round((high - low) / 7))
    powers = range(math.floor(low) - 1, math.ceil(high) + 1, stride)
    return {"values": [step * 10.0**power for power in powers for step in steps], "format": "~g", "labelOverlap": False}
