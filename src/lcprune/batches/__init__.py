"""Images as they are judged, measured and repaired on: drawn once, in batches, on a device.

samples = draw(data, images=3000, seed=0)
for batch in collate(samples, 128, "cuda"):
    call(model, batch.inputs)
"""

from lcprune.batches.check import check_samples, check_weights
from lcprune.batches.draw import Batch, collate, draw, fingerprint, together
from lcprune.batches.running import arithmetic, call, loss_of

__all__ = [
    "Batch",
    "arithmetic",
    "call",
    "check_samples",
    "check_weights",
    "collate",
    "draw",
    "fingerprint",
    "loss_of",
    "together",
]
