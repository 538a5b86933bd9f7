"""Images of one size in memory, and their random crops and flips: a whole batch at once, where the images are.

The usual CIFAR augmentation: pad by four black pixels, crop at random, mirror half of the images. Crop and
mirror become one gather: the columns that are read run backwards for mirrored images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Images in memory.

    Attributes:
        images: uint8 (N, height, width, channels).
        labels: int64 (N,).
    """

    images: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        return f"ArraySplit({len(self):,} images of {'x'.join(map(str, self.images.shape[1:]))})"

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: np.ndarray | Sequence[int]) -> ArraySplit:
        """The images at `indices`, in that order."""
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return ArraySplit(self.images[chosen], self.labels[chosen])

    def central(self, index: Tensor) -> Tensor:
        """Images as they are, uint8 (B, height, width, channels)."""
        return self.images[index]


@dataclass(frozen=True)
class Augmentation:
    """What training does to an image.

    Attributes:
        pad: pixels of black border before the random crop; 0 for no crop.
        flip: mirror half of the images.
    """

    pad: int = 4
    flip: bool = True


def pad_images(images: Tensor, pad: int) -> Tensor:
    """Put `pad` black pixels around uint8 (N, height, width, channels) images."""
    return functional.pad(images, (0, 0, pad, pad, pad, pad)) if pad else images


def draw_shifts(count: int, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Random crops and flips, int64 (3, count): row offset, column offset, 1 where mirrored.

    The generator is one on the CPU, so that every device sees the same draws.
    """
    high = 2 * augmentation.pad + 1
    offsets = torch.randint(high, (2, count), generator=generator)
    flips = torch.randint(2, (1, count), generator=generator) * int(augmentation.flip)
    return torch.cat([offsets, flips])


def gather(padded: Tensor, index: Tensor, drawn: Tensor, height: int, width: int) -> Tensor:
    """Crops, uint8 (B, height, width, channels), of the padded images at `index` (B,), as `draw` has them: (3, B).

    Nothing here waits for the device, so it can be part of a CUDA graph.
    """
    down = torch.arange(height, device=padded.device)
    across = torch.arange(width, device=padded.device)
    rows = drawn[0, :, None] + down
    mirrored = drawn[2, :, None]
    columns = drawn[1, :, None] + across + mirrored * (width - 1 - 2 * across)
    return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
