"""Figures of accuracy, or of another score: the frontiers, before and after tuning, by epoch.

Each turns records into one chart, or None where there is nothing to draw.
"""

from __future__ import annotations

from lcprune.report.figure import WHOLE_NUMBERS, Figure, chart, field, layer, method_scale, network_scale, tip
from lcprune.report.records import Records, is_tuned, summarise
from lcprune.score import HIGHER, Score


def frontier_macs(records: Records) -> Figure | None:
    return _frontier(records, "macs", "MACs")


def frontier_params(records: Records) -> Figure | None:
    return _frontier(records, "params", "parameters")


def _frontier(records: Records, resource: str, words: str) -> Figure | None:
    score, name, title = records.score, records.score.name, records.score.title
    rows = [r for r in summarise(records.results) if r[name] is not None and r.get(resource)]
    if not any(row["method"] != "original" for row in rows):
        return None
    points = []
    for row in rows:
        spread = row[f"{name}_std"] or 0.0
        points.append(
            {
                **{key: row[key] for key in ("network", "method", "macs", "params", "trials")},
                "size": row[resource] / 1e6,
                "score": score.scale * row[name],
                "low": score.scale * (row[name] - spread),
                "high": score.scale * (row[name] + spread),
                "line": f"{row.get('run', '')}/{row['method']}",
            }
        )
    repeated = any(point["trials"] > 1 for point in points)
    size_scale = {"zero": False, "nice": True, "padding": 14}
    x = field("size:Q", title=f"{words} (millions)", axis={"tickCount": 5}, scale=size_scale)
    y = field("score:Q", title=title, scale={"zero": False, "nice": True, "padding": 10})
    place = {"x": x, "color": field("method:N", scale=method_scale(p["method"] for p in points), title=None)}
    shape = {"condition": {"test": "datum.method == 'original'", "value": "diamond"}, "value": "circle"}
    sizes = [tip("macs:Q", "MACs", ".4s"), tip("params:Q", "parameters", ".4s"), tip("trials:Q")]
    line = {**place, "y": y, "detail": field("line:N")}
    bar = {**place, "y": field("low:Q", title=title), "y2": {"field": "high"}}
    dot = {**place, "y": y, "shape": shape, "tooltip": [tip("network:N"), tip("score:Q", title, _form(score)), *sizes]}
    layers = [
        layer("line", line, "datum.method != 'original'", strokeWidth=2, opacity=0.75),
        *([layer("rule", bar, "datum.trials > 1", strokeWidth=1.5)] if repeated else []),
        layer("point", dot, filled=True, size=90, opacity=1),
    ]
    tuned = "After tuning, on" if any(is_tuned(row, score) for row in rows) else "On"
    note = "; bars: one standard deviation" if repeated else ""
    return Figure(
        f"frontier_{resource}",
        f"{_capital(score)} against {words}",
        f"{tuned} held-out data{note}. Further {'up' if score.better == HIGHER else 'down'} and to the left is better.",
        chart(points, 430, 300, layer=layers),
        wide=False,
    )


def before_after(records: Records) -> Figure | None:
    summary, score, name = summarise(records.results), records.score, records.score.name
    if not any(row[f"{name}_repaired"] is not None or is_tuned(row, score) for row in summary):
        return None
    rows = [
        {
            "network": row["network"],
            "method": row["method"],
            "before": score.scale * row[f"{name}_before"],
            "repaired": None if row[f"{name}_repaired"] is None else score.scale * row[f"{name}_repaired"],
            "after": score.scale * row[name],
        }
        for row in summary
        if row[f"{name}_before"] is not None and row[name] is not None
    ]
    stages = {"before": "as cut", "repaired": "repaired", "after": "in the end"}
    unit = " (%)" if score.percent else ""
    axis = {"domain": False, "ticks": False, "labelLimit": 260}
    shared = {
        "y": field("network:N", sort=None, title=None, axis=axis),
        "color": field("method:N", scale=method_scale(row["method"] for row in rows), title=None),
        "tooltip": [tip("network:N"), *(tip(f"{key}:Q", words + unit, _form(score)) for key, words in stages.items())],
    }
    x = field("before:Q", title=score.title, scale={"zero": False, "nice": False, "padding": 8})
    bar, repaired = {**shared, "x": field("repaired:Q")}, any(row["repaired"] is not None for row in rows)
    layers = [
        layer("rule", {**shared, "x": x, "x2": {"field": "after"}}, strokeWidth=4, opacity=0.35),
        layer("point", {**shared, "x": field("before:Q")}, filled=False, size=95, strokeWidth=2, opacity=1),
        *([layer("tick", bar, "datum.repaired != null", thickness=3, size=16, opacity=1)] if repaired else []),
        layer("point", {**shared, "x": field("after:Q")}, filled=True, size=105, opacity=1),
    ]
    return Figure(
        "before_after",
        f"{_capital(score)} as cut, repaired and in the end",
        "Open circle: right after the cut. Bar: repaired, without labels or training. Filled circle: in the end.",
        chart(rows, 640, 26 * len(rows), layer=layers),
    )


def training(records: Records) -> Figure | None:
    score, key = records.score, "val_loss" if records.score.name == "loss" else records.score.name
    rows = [{**row, "score": score.scale * row[key]} for row in records.training if row.get(key) is not None]
    if not rows:
        return None
    encoding = {
        "x": field("epoch:Q", title="epoch", scale={"nice": False}, axis=WHOLE_NUMBERS),
        "y": field("score:Q", title=f"validation {score.title}", scale={"zero": False, "nice": True}),
        "color": field("network:N", sort=None, title=None, scale=network_scale(rows)),
        "tooltip": [tip("network:N"), tip("epoch:Q"), tip("score:Q", score.name, _form(score))],
    }
    spec = chart(rows, 640, 260, **layer("line", encoding, strokeWidth=2, point={"size": 18}))
    return Figure("training", "Training and tuning", f"Validation {score.name} by epoch.", spec)


def _capital(score: Score) -> str:
    return score.name[:1].upper() + score.name[1:]


def _form(score: Score) -> str:
    return ".2f" if score.percent else ".4~g"
