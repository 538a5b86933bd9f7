"""Images as they are judged, measured and repaired on: drawn once, in batches, on a device.

samples = draw(data, images=3000, seed=0)
for batch in collate(samples, 128, "cuda"):
    call(model, batch.inputs)
"""

from lcprune.batches.check import check_samples, check_weights
from lcprune.batches.draw import Batch, alone, as_batch, collate, draw, fingerprint, together
from lcprune.batches.inputs import (
    Inputs,
    arguments,
    arithmetic,
    call,
    example_of,
    loss_of,
    need_comparable,
    random_like,
    shape_of,
    shape_text,
    to_device,
)

__all__ = [
    "Batch",
    "Inputs",
    "alone",
    "arguments",
    "arithmetic",
    "as_batch",
    "call",
    "check_samples",
    "check_weights",
    "collate",
    "draw",
    "example_of",
    "fingerprint",
    "loss_of",
    "need_comparable",
    "random_like",
    "shape_of",
    "shape_text",
    "to_device",
    "together",
]
