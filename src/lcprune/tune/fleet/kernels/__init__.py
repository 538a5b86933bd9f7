"""Training kernels of thin layers for many members at once, on tensor cores, channels innermost.

cuDNN serves 16 channels badly and PyTorch's batch norm reads and writes every activation several times. Here a
convolution adds up what batch norm needs while it writes, normalisation takes the addition and the ReLU along, and the
gradients do likewise. Every kernel's last grid axis is the member, each with weights and statistics of its own; all
sums are made in a fixed order, so a training repeats bit for bit.

A convolution is a matrix product (image, row, column) x (tap, channel). Channels that do not fill a block are read
together with those of the next tap, which lie beside them in memory.
"""

from __future__ import annotations

from lcprune.tune.fleet.kernels.common import available
from lcprune.tune.fleet.kernels.convolution import convolution, depthwise, depthwise_gradient, fits, weight_gradient
from lcprune.tune.fleet.kernels.norm import norm_gradient, normalise, statistics

__all__ = [
    "available",
    "convolution",
    "depthwise",
    "depthwise_gradient",
    "fits",
    "norm_gradient",
    "normalise",
    "statistics",
    "weight_gradient",
]
