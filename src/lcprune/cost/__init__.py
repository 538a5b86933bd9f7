"""What a network costs, as functions of how many units each group keeps."""

from lcprune.cost.polynomial import Axis, Cost, Term

__all__ = ["Axis", "Cost", "Term"]
