"""The methods that LcP is compared with, each on the same graph, cost, surgery and tuning.

lcprune.prune(model, example_inputs, macs=0.5, method="amc", data=batches, options={"episodes": 200})
"""

# They register themselves.
from lcprune.baselines import amc, hand_schedule, morphnet, reconstruction, single_filter, slimming, soft

__all__ = ["amc", "hand_schedule", "morphnet", "reconstruction", "single_filter", "slimming", "soft"]
