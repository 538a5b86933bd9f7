"""Settings of a search and of an evaluation, written in one place."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lcprune import Evaluation, LcP, Search

_SEARCH = {item.name for item in fields(Search)}


def searching(data: Any, **settings: Any) -> dict[str, Any]:
    """`method=` and `data=` of `prune`: LcP with these settings of its search and of the evaluation.

    The network is left as it was cut, for that is what a search judges.
    """
    search = {name: value for name, value in settings.items() if name in _SEARCH}
    judged = {name: value for name, value in settings.items() if name not in _SEARCH}
    return {"method": LcP(Search(**search)), "data": Evaluation(data, **judged), "repair": "none"}


def searching_many(data: Any, **settings: Any) -> dict[str, Any]:
    """`methods=` and `data=` of `pareto`, likewise, with naive and uniform pruning beside it."""
    found = searching(data, **settings)
    return {"methods": [found.pop("method"), "naive", "uniform"], **found}
