"""Colours and fonts of the figures, for light, dark and paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

# A method keeps its colour in every figure; readable on white and on near-black alike.
METHOD_COLOURS = {"original": "#7c8798", "uniform": "#9aa5b4", "naive": "#e08a3c", "lcp": "#3f7fe0"}
# From the first layer to the last; the ends stay clear of both black and white.
DEPTH_COLOURS = ["#5b7fe8", "#2fb0c4", "#5cb85c", "#d9b32e", "#e27b3a", "#c9527c"]
_MORE_COLOURS = ("#2fa58d", "#c9567a", "#8d6fd1", "#b79a2e", "#4aa8c9", "#a0674b", "#6f9e3f", "#d16ba5")

# An axis that counts epochs or candidates; a short one would be labelled 1.0, 1.5, 2.0.
WHOLE_NUMBERS = {"tickMinStep": 1, "labelExpr": "datum.value % 1 ? '' : format(datum.value, 'd')"}

_INK = {
    "light": {"text": "#1f2733", "muted": "#5b6675", "grid": "#e6e9ee", "line": "#c3cad4"},
    "dark": {"text": "#e7ebf1", "muted": "#a4afbd", "grid": "#2a313c", "line": "#465060"},
}


def method_scale(methods: Iterable[str]) -> dict[str, list[str]]:
    """Domain and range of a colour scale over the methods that occur, in a fixed order."""
    present = set(methods)
    known = [name for name in METHOD_COLOURS if name in present]
    others = sorted(present - set(known))
    colours = [METHOD_COLOURS[name] for name in known]
    colours += [_MORE_COLOURS[i % len(_MORE_COLOURS)] for i in range(len(others))]
    return {"domain": known + others, "range": colours}


def network_scale(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Domain and range of a colour scale over networks: the method's colour, paler for tighter limits."""
    networks: dict[str, tuple[str, float]] = {}
    for row in rows:
        method = row.get("method") or str(row["network"]).rsplit(": ", 1)[-1].split(" ")[0]
        networks.setdefault(row["network"], (method, row.get("limit") or 1.0))
    methods = method_scale(method for method, _ in networks.values())
    base = dict(zip(methods["domain"], methods["range"], strict=True))
    colours = []
    for method, limit in networks.values():
        limits = sorted({other for name, other in networks.values() if name == method}, reverse=True)
        colours.append(_paler(base[method], 0.65 * limits.index(limit) / max(2, len(limits))))
    return {"domain": list(networks), "range": colours}


def _paler(colour: str, share: float) -> str:
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (236 - c) * share):02x}" for c in channels)


def vega_config(mode: str) -> dict[str, Any]:
    """Vega-Lite configuration for mode "light" or "dark"."""
    ink = _INK[mode]
    label = {"labelColor": ink["muted"], "titleColor": ink["text"], "labelFont": FONT, "titleFont": FONT}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "title": {"color": ink["text"], "font": FONT, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "axis": {
            **label,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "titlePadding": 8,
            "gridColor": ink["grid"],
            "domainColor": ink["line"],
            "tickColor": ink["line"],
        },
        "legend": {
            "columns": 4,
            **label,
            "orient": "top",
            "symbolOpacity": 1,
            "labelLimit": 240,
            "padding": 0,
            "offset": 10,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "symbolSize": 90,
        },
        "header": {**label, "labelFontSize": 12, "titleFontSize": 12, "labelFontWeight": 500},
        "rule": {"color": ink["muted"]},
        "text": {"color": ink["muted"], "font": FONT},
        "range": {"category": [*METHOD_COLOURS.values(), *_MORE_COLOURS]},
    }
