"""How long networks take on this device.

records = lcprune.latency.measure({"original": model, "pruned": smaller}, example_input)
"""

from lcprune.latency.measure import OUT_OF_MEMORY, LatencyRecord, measure

__all__ = ["OUT_OF_MEMORY", "LatencyRecord", "measure"]
