"""What a figure is, the parts of a Vega-Lite specification that several figures have, and colours of marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# A method keeps its colour in every figure; readable on white and on near-black alike.
METHOD_COLOURS = {"original": "#7c8798", "uniform": "#9aa5b4", "naive": "#e08a3c", "lcp": "#3f7fe0"}
MORE_COLOURS = ("#2fa58d", "#c9567a", "#8d6fd1", "#b79a2e", "#4aa8c9", "#a0674b", "#6f9e3f", "#d16ba5")
# From the first layer to the last; the ends stay clear of both black and white.
DEPTH_COLOURS = ["#5b7fe8", "#2fb0c4", "#5cb85c", "#d9b32e", "#e27b3a", "#c9527c"]

# An axis that counts epochs or candidates; a short one would be labelled 1.0, 1.5, 2.0.
WHOLE_NUMBERS = {"tickMinStep": 1, "labelExpr": "datum.value % 1 ? '' : format(datum.value, 'd')"}

_KINDS = {"N": "nominal", "O": "ordinal", "Q": "quantitative"}


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: file name without ending.
        title: heading on the page.
        caption: what to see in it.
        spec: the Vega-Lite specification, without colours of the page (see `render.vega_config`).
        wide: whether it takes the page's whole width.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    wide: bool = True


def field(name: str, **more: Any) -> dict[str, Any]:
    """A channel of a chart: `field("size:Q", title="MACs")` reads numbers from `size`."""
    name, _, kind = name.partition(":")
    return {"field": name, "type": _KINDS[kind], **more}


def tip(name: str, title: str | None = None, form: str | None = None) -> dict[str, Any]:
    """One line of a tooltip."""
    return field(name, **({"title": title} if title else {}), **({"format": form} if form else {}))


def layer(mark: str, encoding: dict[str, Any], only: str = "", **style: Any) -> dict[str, Any]:
    """One layer of a chart; `only` is a condition on its rows."""
    chosen = {"transform": [{"filter": only}]} if only else {}
    return {"mark": {"type": mark, **style}, "encoding": encoding, **chosen}


def chart(values: list[dict[str, Any]], width: int, height: int, **rest: Any) -> dict[str, Any]:
    """A whole specification: `rest` is a mark with its encoding, or layers."""
    return concat(data={"values": values}, width=width, height=height, **rest)


def concat(**parts: Any) -> dict[str, Any]:
    """A specification made of others."""
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", **parts}


def method_scale(methods: Iterable[str]) -> dict[str, list[str]]:
    """Domain and range of a colour scale over the methods that occur, in a fixed order."""
    present = set(methods)
    known = [name for name in METHOD_COLOURS if name in present]
    others = sorted(present - set(known))
    more = [MORE_COLOURS[i % len(MORE_COLOURS)] for i in range(len(others))]
    return {"domain": known + others, "range": [*map(METHOD_COLOURS.__getitem__, known), *more]}


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
    return "#" + "".join(f"{round(c + (236 - c) * share):02x}" for c in bytes.fromhex(colour[1:]))
