"""Figures of accuracy: the frontiers, before and after tuning, by epoch.

Each turns records into one chart, or None where there is nothing to draw.
"""

from __future__ import annotations

from lcprune.report.figure import Figure, chart, field, layer, tip
from lcprune.report.records import Records, is_tuned, summarise
from lcprune.report.theme import WHOLE_NUMBERS, method_scale, network_scale


def frontier_macs(records: Records) -> Figure | None:
    return _frontier(records, "macs", "MACs")


def frontier_params(records: Records) -> Figure | None:
    return _frontier(records, "params", "parameters")


def _frontier(records: Records, resource: str, words: str) -> Figure | None:
    rows = [r for r in summarise(records.results) if r.get("accuracy") is not None and r.get(resource)]
    if not any(row["method"] != "original" for row in rows):
        return None
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
    repeated = any(point["trials"] > 1 for point in points)
    colour = field("method:N", scale=method_scale(p["method"] for p in points), title=None)
    size_scale = {"zero": False, "nice": True, "padding": 14}
    x = field("size:Q", title=f"{words} (millions)", axis={"tickCount": 5}, scale=size_scale)
    y = field("accuracy:Q", title="accuracy (%)", scale={"zero": False, "nice": True, "padding": 10})
    shape = {"condition": {"test": "datum.method == 'original'", "value": "diamond"}, "value": "circle"}
    tooltip = [
        tip("network:N"),
        tip("accuracy:Q", "accuracy (%)", ".2f"),
        tip("macs:Q", "MACs", ".4s"),
        tip("params:Q", "parameters", ".4s"),
        tip("trials:Q"),
    ]
    line = {"x": x, "y": y, "color": colour, "detail": field("line:N")}
    bar = {"x": x, "y": field("low:Q", title="accuracy (%)"), "y2": {"field": "high"}, "color": colour}
    dot = {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip}
    layers = [
        layer("line", line, "datum.method != 'original'", strokeWidth=2, opacity=0.75),
        *([layer("rule", bar, "datum.trials > 1", strokeWidth=1.5)] if repeated else []),
        layer("point", dot, filled=True, size=90, opacity=1),
    ]
    tuned = "After tuning, on" if any(map(is_tuned, rows)) else "On"
    note = "; bars: one standard deviation" if repeated else ""
    return Figure(
        f"frontier_{resource}",
        f"Accuracy against {words}",
        f"{tuned} held-out data{note}. Further up and to the left is better.",
        chart(points, 430, 300, layer=layers),
        wide=False,
    )


def before_after(records: Records) -> Figure | None:
    summary = summarise(records.results)
    if not any(row.get("accuracy_repaired") is not None or is_tuned(row) for row in summary):
        return None
    rows = [
        {
            "network": row["network"],
            "method": row["method"],
            "before": 100 * row["accuracy_before"],
            "repaired": None if row.get("accuracy_repaired") is None else 100 * row["accuracy_repaired"],
            "after": 100 * row["accuracy"],
        }
        for row in summary
        if row.get("accuracy_before") is not None and row.get("accuracy") is not None
    ]
    axis = {"domain": False, "ticks": False, "labelLimit": 260}
    shared = {
        "y": field("network:N", sort=None, title=None, axis=axis),
        "color": field("method:N", scale=method_scale(row["method"] for row in rows), title=None),
        "tooltip": [
            tip("network:N"),
            tip("before:Q", "as cut (%)", ".2f"),
            tip("repaired:Q", "repaired (%)", ".2f"),
            tip("after:Q", "in the end (%)", ".2f"),
        ],
    }
    x = field("before:Q", title="accuracy (%)", scale={"zero": False, "nice": False, "padding": 8})
    bar, repaired = {**shared, "x": field("repaired:Q")}, any(row["repaired"] is not None for row in rows)
    layers = [
        layer("rule", {**shared, "x": x, "x2": {"field": "after"}}, strokeWidth=4, opacity=0.35),
        layer("point", {**shared, "x": field("before:Q")}, filled=False, size=95, strokeWidth=2, opacity=1),
        *([layer("tick", bar, "datum.repaired != null", thickness=3, size=16, opacity=1)] if repaired else []),
        layer("point", {**shared, "x": field("after:Q")}, filled=True, size=105, opacity=1),
    ]
    return Figure(
        "before_after",
        "Accuracy as cut, repaired and in the end",
        "Open circle: right after the cut. Bar: repaired, without labels or training. Filled circle: in the end.",
        chart(rows, 640, 26 * len(rows), layer=layers),
    )


def training(records: Records) -> Figure | None:
    rows = [{**row, "accuracy": 100 * row["accuracy"]} for row in records.training if row.get("accuracy") is not None]
    if not rows:
        return None
    encoding = {
        "x": field("epoch:Q", title="epoch", scale={"nice": False}, axis=WHOLE_NUMBERS),
        "y": field("accuracy:Q", title="validation accuracy (%)", scale={"zero": False, "nice": True}),
        "color": field("network:N", sort=None, title=None, scale=network_scale(rows)),
        "tooltip": [tip("network:N"), tip("epoch:Q"), tip("accuracy:Q", form=".2f")],
    }
    spec = chart(rows, 640, 260, **layer("line", encoding, strokeWidth=2, point={"size": 18}))
    return Figure("training", "Training and tuning", "Validation accuracy by epoch.", spec)
