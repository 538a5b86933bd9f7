"""From a Vega-Lite specification to pictures: colours and fonts of light and dark, PNG, SVG, a browser's script."""

from __future__ import annotations

import functools
import gzip
import importlib.util
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from lcprune.errors import MissingDependencyError
from lcprune.files import atomic_write
from lcprune.progress import say_once
from lcprune.report.figure import METHOD_COLOURS, MORE_COLOURS, Figure

MARK = "Made by lcprune"
_MISSING = "vl-convert-python is not installed; it comes with: pip install lcprune[figures]"

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_INK = {
    "light": {"text": "#1f2733", "muted": "#5b6675", "grid": "#e6e9ee", "line": "#c3cad4"},
    "dark": {"text": "#e7ebf1", "muted": "#a4afbd", "grid": "#2a313c", "line": "#465060"},
}


def pictures() -> bool:
    """Whether figures can be made into PNG and SVG; where not, the log says once how to get them."""
    if importlib.util.find_spec("vl_convert") is not None:
        return True
    say_once(f"the report is without PNG and SVG files: {_MISSING}")
    return False


def svg(figure: Figure) -> str:
    """The figure for white paper."""
    spec = {**figure.spec, "config": vega_config("light"), "background": "white", "padding": 12}
    return _vl_convert().vegalite_to_svg(spec)


def write_figures(drawn: Mapping[str, str], folder: Path) -> None:
    """Write every figure, drawn as SVG and by name, as SVG and PNG into `folder`."""
    for name, picture in drawn.items():
        with atomic_write(folder / f"{name}.svg") as path:
            path.write_text(f"{picture}<!-- {MARK} -->\n", encoding="utf-8")
        with atomic_write(folder / f"{name}.png") as path:
            path.write_bytes(_vl_convert().svg_to_png(picture, scale=2))  # about 144 pixels to an inch


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script: no network needed."""
    # It is vl_convert.javascript_bundle() of vl-convert-python 1.9.0 (Vega 6.2.0, Vega-Lite 6.4, Vega-Embed 7.0.2),
    # which is 84 MB; licences are in vega-licenses.txt.
    packed = resources.files("lcprune.report").joinpath("vega.js.gz").read_bytes()
    # A script element ends at the first closing tag, even inside a string.
    return gzip.decompress(packed).decode().replace("</script", "<\\/script")


def _vl_convert() -> Any:
    try:
        return importlib.import_module("vl_convert")
    except ImportError:
        raise MissingDependencyError(_MISSING) from None


def vega_config(mode: str) -> dict[str, Any]:
    """Vega-Lite configuration for mode "light" or "dark"."""
    ink = _INK[mode]
    label = {"labelColor": ink["muted"], "titleColor": ink["text"], "labelFont": _FONT, "titleFont": _FONT}
    return {
        "background": None,
        "font": _FONT,
        "view": {"stroke": None},
        "title": {"color": ink["text"], "font": _FONT, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
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
        "text": {"color": ink["muted"], "font": _FONT},
        "range": {"category": [*METHOD_COLOURS.values(), *MORE_COLOURS]},
    }
