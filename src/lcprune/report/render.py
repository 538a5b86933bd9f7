"""From a Vega-Lite specification to files: PNG and SVG for papers, and the script for a browser."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lcprune.errors import MissingDependencyError
from lcprune.files import atomic_write
from lcprune.report.figure import Figure
from lcprune.report.theme import vega_config

logger = logging.getLogger("lcprune")


def svg(figure: Figure) -> str:
    """The figure for white paper."""
    return _vl_convert().vegalite_to_svg(_on_paper(figure))


def png(drawn: str, scale: float = 2.0) -> bytes:
    """Pixels of what `svg` drew; `scale` 2 is about 144 dots per inch."""
    return _vl_convert().svg_to_png(drawn, scale=scale)


def write_figures(drawn: Mapping[str, str], folder: Path) -> None:
    """Write every figure, drawn as SVG and by name, as SVG and PNG into `folder`."""
    for name, picture in drawn.items():
        with atomic_write(folder / f"{name}.svg") as path:
            path.write_text(picture, encoding="utf-8")
        with atomic_write(folder / f"{name}.png") as path:
            path.write_bytes(png(picture))


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, taken from the installed package: no network needed."""
    # A script element ends at the first closing tag, even inside a string.
    return _vl_convert().javascript_bundle().replace("</script", "<\\/script")


def _on_paper(figure: Figure) -> dict[str, Any]:
    return {**figure.spec, "config": vega_config("light"), "background": "white", "padding": 12}


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingDependencyError("figures need altair and vl-convert-python: pip install lcprune") from None
    return vl_convert
