"""What every operator does to labels: one short function per family, found by the operator's name.

A rule that is missing is never guessed: the channels that an undescribed operator touches are frozen.
"""

from lcprune.graph.rules import along, contraction, elementwise, indexing, mixing, movement
from lcprune.graph.rules.table import STANDS_IN, Call, Rule, Step, find_rule, is_mask

__all__ = [
    "STANDS_IN",
    "Call",
    "Rule",
    "Step",
    "along",
    "contraction",
    "elementwise",
    "find_rule",
    "indexing",
    "is_mask",
    "mixing",
    "movement",
]
