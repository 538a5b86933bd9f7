"""Random crops and flips for a whole batch at once, on whatever device the images are.

The usual CIFAR augmentation: pad by four black pixels, crop at random, mirror half of the images. Crop and
mirror become one gather: the columns that are read run backwards for mirrored images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


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


def draw(count: int, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Random crops and flips for `count` images.

    Args:
        generator: a generator on the CPU, so that every device sees the same draws.

    Returns:
        int64 (3, count): row offset, column offset, 1 where mirrored.
    """
    high = 2 * augmentation.pad + 1
    offsets = torch.randint(high, (2, count), generator=generator)
    flips = torch.randint(2, (1, count), generator=generator) * int(augmentation.flip)
    return torch.cat([offsets, flips])


def gather(padded: Tensor, index: Tensor, drawn: Tensor, height: int, width: int) -> Tensor:
    """Crops of padded images; nothing here waits for the device, so it can be part of a CUDA graph.

    Args:
        padded: uint8 (N, padded height, padded width, channels).
        index: int64 (B,), which images.
        drawn: int64 (3, B), from `draw`.

    Returns:
        uint8 (B, height, width, channels).
    """
    down = torch.arange(height, device=padded.device)
    across = torch.arange(width, device=padded.device)
    rows = drawn[0, :, None] + down
    mirrored = drawn[2, :, None]
    columns = drawn[1, :, None] + across + mirrored * (width - 1 - 2 * across)
    return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
