"""Operators that make tensors out of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lcprune.graph.labels import Labels
from lcprune.graph.rules.table import Call, Outcome, rule

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


@rule(
    *("empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_empty_strided"),
    *("new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like"),
    always=True,
)
def uniform(run: LabelPass, call: Call, out: Any) -> Outcome:
    """All elements are equal, so it does not matter which of them go; `zeros_like` follows the size of its model."""
    if call.name.endswith("_like"):
        return Labels(call.labels[0].layers, uniform=True)
    return Labels(uniform=True)


@rule("bernoulli", "rand", "rand_like", "randn", "randn_like", "randperm")
def random(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Random values are as good for one channel as for another."""
    return Labels(uniform=True)
