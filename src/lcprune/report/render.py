"""From a Vega-Lite specification to files: PNG and SVG for papers, and the script for a browser."""

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
from lcprune.report.figure import Figure
from lcprune.report.theme import vega_config

MARK = "Made by lcprune"
_MISSING = "vl-convert-python is not installed; it comes with: pip install lcprune[figures]"


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


def png(drawn: str) -> bytes:
    """Pixels of what `svg` drew, about 144 to an inch."""
    return _vl_convert().svg_to_png(drawn, scale=2)


def write_figures(drawn: Mapping[str, str], folder: Path) -> None:
    """Write every figure, drawn as SVG and by name, as SVG and PNG into `folder`."""
    for name, picture in drawn.items():
        with atomic_write(folder / f"{name}.svg") as path:
            path.write_text(f"{picture}<!-- {MARK} -->\n", encoding="utf-8")
        with atomic_write(folder / f"{name}.png") as path:
            path.write_bytes(png(picture))


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
        import vl_convert
    except ImportError:
        raise MissingDependencyError(_MISSING) from None
    return vl_convert
