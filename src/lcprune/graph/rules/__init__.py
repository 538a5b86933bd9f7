"""What every operator does to labels: one short function per family, found by the operator's name.

A rule that is missing is never guessed: the channels that an undescribed operator touches are frozen.
"""

from lcprune.graph.rules import (
    along,
    contraction,
    creation,
    elementwise,
    indexing,
    movement,
    normalization,
    reduction,
    spatial,
)
from lcprune.graph.rules.table import STANDS_IN, Call, Rule, Step, find_rule, is_mask, rule

__all__ = [
    "STANDS_IN",
    "Call",
    "Rule",
    "Step",
    "along",
    "contraction",
    "creation",
    "elementwise",
    "find_rule",
    "indexing",
    "is_mask",
    "movement",
    "normalization",
    "reduction",
    "rule",
    "spatial",
]
