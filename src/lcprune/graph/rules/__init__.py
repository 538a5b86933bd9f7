"""What every operator does to labels: one short function per family, found by the operator's name.

A rule that is missing is never guessed: the channels that an undescribed operator touches are frozen.
"""

from lcprune.graph.rules import (
    along,
    contraction,
    creation,
    elementwise,
    movement,
    normalization,
    reduction,
    spatial,
)
from lcprune.graph.rules.table import Call, Rule, Step, find_rule, rule

__all__ = [
    "Call",
    "Rule",
    "Step",
    "along",
    "contraction",
    "creation",
    "elementwise",
    "find_rule",
    "movement",
    "normalization",
    "reduction",
    "rule",
    "spatial",
]
