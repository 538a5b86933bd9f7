"""What a figure is, and the parts of a Vega-Lite specification that several figures have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_KINDS = {"N": "nominal", "O": "ordinal", "Q": "quantitative"}


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: file name without ending.
        title: heading on the page.
        caption: what to see in it.
        spec: the Vega-Lite specification, without colours of the page (see `theme.vega_config`).
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
    return {**concat(data={"values": values}), "width": width, "height": height, **rest}


def concat(**parts: Any) -> dict[str, Any]:
    """A specification made of others."""
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", **parts}
