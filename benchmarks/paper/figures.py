"""The paper's figures from stored cells, drawn by `lcprune.report`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lcprune.files import atomic_write
from lcprune.report import Figure, Records
from lcprune.report.accuracy import frontier_macs, frontier_params
from lcprune.report.figure import concat, field, layer, method_scale, tip
from lcprune.report.insides import metric, schedule, search
from lcprune.report.render import svg
from paper import objectives
from paper.cells import percent
from paper.store import Row, Store

Made = Figure | None


def _records(**rows: Any) -> Records:
    return Records("the paper", **rows)


def original(store: Store) -> list[Row]:
    """The network before pruning: accuracy from the record of its training, size from what was cut of it."""
    file = store.folder / f"{store.network}-baseline.json"
    cut = store.rows("results", f"{store.network}/frontier/")
    if not file.is_file() or not cut:
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    sizes = {name: round(cut[0][name] / cut[0][f"{name}_share"]) for name in ("macs", "params")}
    row = {"network": "original", "method": "original", "limit": None, "seed": 0, "accuracy": record["test_accuracy"]}
    return [{**row, **sizes}]


def _titled(figure: Made, name: str, title: str, caption: str | None = None) -> Made:
    return figure and replace(figure, name=name, title=title, caption=caption or figure.caption)


def _named(rows: Sequence[Row], lcp: str = "lcp, learned at the tightest") -> list[Row]:
    """Rows with methods as a reader knows them; `lcp` says which search is meant where nothing else does."""
    words = {"each": "lcp, search per limit", "sweep": "lcp, shared search", "lcp": lcp, "anew": "lcp, new statistics"}
    words |= {"single_filter": "single-filter pruning", "morphnet": "MorphNet"}
    return [{**row, "method": words.get(row["method"], row["method"])} for row in rows]


def figure_1(store: Store) -> Made:
    """Metric against true loss difference."""
    return _titled(metric(_records(metric=store.rows("metric", f"{store.network}/metric"))), "figure-1", "Metric error")


def figure_2(store: Store) -> Made:
    """Accuracy against MACs after tuning."""
    tuned = store.rows("results", f"{store.network}/tune/", f"{store.network}/rival/")
    rows = [r for r in tuned if r["resource"] == "macs"]
    return _titled(
        frontier_macs(_records(results=[*original(store), *_named(rows)] if rows else [])), "figure-2", "Frontier"
    )


def figure_2_params(store: Store) -> Made:
    """Accuracy against parameters after tuning, limits on parameters."""
    rows = [r for r in store.rows("results", f"{store.network}/tune/") if r["resource"] == "params"]
    drawn = frontier_params(_records(results=[*original(store), *_named(rows, "lcp, shared search")] if rows else []))
    return _titled(drawn, "figure-2-params", "Frontier, parameters")


def figure_3(store: Store) -> Made:
    """Layer schedules of naive pruning."""
    rows = [r for r in store.rows("schedule", f"{store.network}/frontier/l2/1") if r["method"] in ("naive", "lcp")]
    rows = [r for r in rows if r["method"] == "naive" or r["limit"] == 0.5]
    rows.sort(key=lambda row: (row["method"] != "naive", -row["limit"], row["position"]))
    return _titled(schedule(_records(schedule=rows)), "figure-3", "Layer schedules")


def _untuned(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "accuracy": row["accuracy_before"]} for row in rows if row.get("accuracy_before") is not None]


def figure_4(store: Store) -> Made:
    """Accuracy before tuning."""
    rows = _named(_untuned(store.rows("results", f"{store.network}/frontier/l2/")))
    for kind, words in (("each", "lcp, search per limit"), ("sweep/l2", "lcp, shared search")):
        found = _untuned(store.rows("results", f"{store.network}/{kind}/"))
        rows += [{**row, "method": words} for row in found]
    caption = "Right after pruning, on test images."
    return _titled(
        frontier_macs(_records(results=[*original(store), *rows] if rows else [])), "figure-4", "Before", caption
    )


def figure_5(store: Store) -> Made:
    """Search curves, one per limit."""
    rows = store.rows("search", f"{store.network}/frontier/l2/1", f"{store.network}/each/")
    rows = [row for row in rows if row["cell"].endswith("/1")]
    rows.sort(key=lambda row: (-row["limit"], row["iteration"]))
    return _titled(search(_records(search=rows)), "figure-5", "Search")


def figure_6(store: Store) -> Made:
    """Small networks: MobileNetV2."""
    rows = [*store.rows("results", "mobilenetv2/tune/"), *store.rows("results", "mobilenetv2/baseline")]
    return _titled(frontier_macs(_records(results=_named(rows, "lcp, shared search"))), "figure-6", "Small networks")


def _compared(store: Store, kinds: dict[str, str], name: str, title: str) -> Made:
    rows = []
    for kind, words in kinds.items():
        found = _untuned(store.rows("results", f"{store.network}/sweep/{kind}/1"))
        if kind == "l2":  # whose naive networks are those of the frontier
            naive = _untuned(store.rows("results", f"{store.network}/frontier/l2/1"))
            found += [row for row in naive if row["method"] == "naive"]
        rows += [{**r, "method": f"{words}, {r['method']}"} for r in found if r["method"] in ("naive", "lcp")]
    caption = "Right after pruning, on test images; one trial, one shared search for each line of LcP."
    return _titled(frontier_macs(_records(results=rows)), name, title, caption)


def figure_7(store: Store) -> Made:
    """Metrics with and without compensation, before tuning."""
    kinds = {"l1": "l1", "l2": "l2", "taylor": "Taylor"}
    return _compared(store, kinds, "figure-7", "Metrics")


def figure_8(store: Store) -> Made:
    """Floors, before tuning."""
    kinds = {"floor-0": "no floor", "l2": "10 %", "floor-20": "20 %", "floor-30": "30 %"}
    return _compared(store, kinds, "figure-8", "Floors")


def figure_objectives(store: Store) -> Made:
    """Objectives of selections against validation accuracy after a brief tuning."""
    rows = store.rows("objective")
    if not rows:
        return None
    wanted = ("cut loss", "recalibrated loss", "recalibrated distance", "repaired loss", "repaired squares")
    shown = [n for n in objectives.objectives_of(rows) if n in wanted or (n.startswith("step") and n.endswith("loss"))]
    log = {"type": "log", "nice": False, "padding": 8}
    ticks = {"tickCount": 4, "format": "~g", "grid": False}
    encoding = {
        "x": field("said:Q", title=None, scale=log, axis=ticks),
        "y": field("accuracy:Q", title="validation accuracy (%)", scale={"zero": False}),
        "color": field("kind:N", title=None, scale=method_scale(row["method"].split("-")[0] for row in rows)),
        "tooltip": [tip("selection:N"), tip("said:Q", form=".4g"), tip("accuracy:Q", form=".2f")],
    }
    dots = layer("point", encoding, filled=True, size=55, opacity=0.85)
    charts = []
    for limit in sorted({row["limit"] for row in rows}, reverse=True):
        line = []
        for name in shown:
            points = [
                {
                    "said": objectives.value_of(row, name),
                    "accuracy": 100 * row["val_accuracy"],
                    "selection": row["method"],
                    "kind": row["method"].split("-")[0],
                }
                for row in rows
                if row["limit"] == limit and 0 < objectives.value_of(row, name) < math.inf
            ]
            rho = objectives.correlate([r for r in rows if r["limit"] == limit], name, "val_accuracy", 1)["rho"]
            told = "" if rho is None else f" ({rho:+.2f})"
            title = f"{percent(limit)} %: {name}{told}"
            line.append({"data": {"values": points}, "title": title, "width": 250, "height": 190, **dots})
        charts.append({"hconcat": line})
    caption = "One dot per selection; beside each title the rank correlation (+1: the objective ranks as tuning does)."
    return Figure("objectives", "Objectives", caption, concat(vconcat=charts))


FIGURES: dict[str, Callable[[Store], Made]] = {
    "figure-1": figure_1,
    "figure-2": figure_2,
    "figure-2-params": figure_2_params,
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "figure-8": figure_8,
    "objectives": figure_objectives,
}


def draw(store: Store, folder: Path, names: Sequence[str] = ()) -> list[str]:
    """Draw the figures of these names (all, if none is named) for which there are cells; returns their files."""
    drawn = []
    for name, make in FIGURES.items():
        figure = make(store) if not names or name in names else None
        if figure is not None:
            with atomic_write(folder / f"{figure.name}.svg") as path:
                path.write_text(svg(figure), encoding="utf-8")
            drawn.append(f"{figure.name}.svg")
    return drawn
