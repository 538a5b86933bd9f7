"""What a network costs, as functions of how many units each group keeps."""

from lcprune.cost.polynomial import Axis, Cost, LayerCost, Term

__all__ = ["Axis", "Cost", "LayerCost", "Term"]
