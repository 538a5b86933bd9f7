"""Repair: a cut network that works without training.

small = lcprune.repair(model, plan, batches)
"""

from lcprune.repairs.repair import AUTO, HOW, IMAGES, NONE, STAND_INS, Repair, check_how, expand, mend, repair

__all__ = ["AUTO", "HOW", "IMAGES", "NONE", "STAND_INS", "Repair", "check_how", "expand", "mend", "repair"]
