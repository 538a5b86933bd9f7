"""What a figure is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lcprune.errors import MissingDependencyError


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


def altair() -> Any:
    """Import altair, or say how to get it."""
    try:
        import altair as alt
    except ImportError:
        raise MissingDependencyError("the report needs altair: pip install lcprune") from None
    return alt
