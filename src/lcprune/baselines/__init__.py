"""The methods that LcP is compared with, each on the same graph, cost, surgery and tuning.

lcprune.prune(model, example_inputs, macs=0.5, method="amc", data=batches, options={"episodes": 200})
"""

from lcprune.baselines.amc import amc
from lcprune.baselines.hand_schedule import l1_schedule
from lcprune.baselines.morphnet import morphnet
from lcprune.baselines.reconstruction import channel_lasso, thinet
from lcprune.baselines.single_filter import single_filter, single_filter_fisher
from lcprune.baselines.slimming import slimming
from lcprune.baselines.soft import soft

__all__ = [
    "amc",
    "channel_lasso",
    "l1_schedule",
    "morphnet",
    "single_filter",
    "single_filter_fisher",
    "slimming",
    "soft",
    "thinet",
]
