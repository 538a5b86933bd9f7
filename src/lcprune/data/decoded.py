"""Image files decoded once: all pixels in memory, cropped where they are.

A data set of some thousand photographs fits a GPU's memory as a whole. Images keep their shapes (the shorter side is
that of evaluation), one after another in one long table of pixels, so that a random resized crop of a batch is four
gathers and nothing waits for the host or for a decoder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lcprune.data.files import FileSplit
from lcprune.progress import Progress

_TRIES = 10  # crops drawn for an image until one fits into it
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)


@dataclass(frozen=True, eq=False)
class DecodedSplit:
    """Images of any shape in memory.

    Attributes:
        pixels: uint8 (P, 3), row by row, image by image.
        places: int64 (3, N): where in `pixels` each image begins, its height and its width.
        labels: int64 (N,).
        size: height and width of a network input.
    """

    pixels: Tensor
    places: Tensor
    labels: Tensor
    size: int = 224

    def __repr__(self) -> str:
        return f"DecodedSplit({len(self):,} images)"

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: np.ndarray | Sequence[int]) -> DecodedSplit:
        """The images at `indices`, in that order, over the same pixels."""
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return replace(self, places=self.places[:, chosen], labels=self.labels[chosen])

    def to(self, device: torch.device | str) -> DecodedSplit:
        """The same images with their pixels on a device."""
        return replace(self, pixels=self.pixels.to(device))

    def central(self, index: Tensor) -> Tensor:
        """The middle of images, uint8 (B, size, size, 3), where the pixels are."""
        start, height, width = self.places[:, index].to(self.pixels.device)[:, :, None]
        line = torch.arange(self.size, device=self.pixels.device)
        rows, columns = (height - self.size) // 2 + line, (width - self.size) // 2 + line
        return self.pixels[(start + rows * width)[:, :, None] + columns[:, None, :]]


def decode(split: FileSplit, threads: int | None = None, progress: bool = False) -> DecodedSplit:
    """Read all images of a split, their shorter side brought to its `resize` pixels."""
    images = []
    with (
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
        Progress("decoding", total=len(split), enabled=progress) as bar,
    ):
        for image in pool.map(split.read_whole, range(len(split))):
            images.append(image)
            bar.advance()
    heights = torch.tensor([image.shape[0] for image in images], dtype=torch.int64)
    widths = torch.tensor([image.shape[1] for image in images], dtype=torch.int64)
    counts = heights * widths
    flat = [image.reshape(-1, 3) for image in images] or [np.zeros((0, 3), dtype=np.uint8)]
    pixels = torch.from_numpy(np.concatenate(flat))
    return DecodedSplit(pixels, torch.stack([counts.cumsum(0) - counts, heights, widths]), split.labels, split.size)


def draw_crops(places: Tensor, generator: torch.Generator) -> Tensor:
    """Random resized crops and flips, as ImageNet training has them: 8 to 100 % of the area, aspect 3/4 to 4/3.

    Of images at `places` (3, N), as in a `DecodedSplit`: float32 (5, N) of left, top, width, height, and 1 where
    mirrored. The generator is one on the CPU, so that every device sees the same draws.
    """
    _, heights, widths = places
    count = len(heights)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator)

    area = heights * widths * uniform(*_AREA, _TRIES, count)
    aspect = torch.exp(uniform(math.log(_ASPECT[0]), math.log(_ASPECT[1]), _TRIES, count))
    across, down = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (across > 0) & (across <= widths) & (down > 0) & (down <= heights)
    first = fits.int().argmax(0, keepdim=True)  # the first that fits
    side = torch.minimum(heights, widths).float()
    found = fits.any(0)
    width = torch.where(found, across.gather(0, first)[0], side)
    height = torch.where(found, down.gather(0, first)[0], side)
    place = torch.where(found, uniform(0, 1, 2, count), torch.tensor(0.5))  # where none does: the middle
    left, top = torch.floor(place * torch.stack([widths - width + 1, heights - height + 1]))
    mirrored = torch.randint(2, (count,), generator=generator)
    return torch.stack([left, top, width, height, mirrored.float()])


def middle(places: Tensor, size: int) -> Tensor:
    """The crops in the middle of images, as `draw_crops` would give them."""
    _, heights, widths = places
    side = torch.full_like(heights, size)
    return torch.stack([(widths - size) // 2, (heights - size) // 2, side, side, 0 * side]).float()


def sample(pixels: Tensor, places: Tensor, crops: Tensor, size: int) -> Tensor:
    """Crops (5, B) of images at `places` (3, B), bilinearly: float32 (B, size, size, 3), from 0 to 255.

    Device work only, so it can be part of a CUDA graph.
    """
    start, height, width = places[:, :, None]
    left, top, across, down, mirrored = crops[:, :, None]
    line = torch.arange(size, device=pixels.device, dtype=torch.float32)
    turned = line + mirrored * (size - 1 - 2 * line)
    x = left + (turned + 0.5) * (across / size) - 0.5
    y = top + (line + 0.5) * (down / size) - 0.5
    columns, right = _neighbours(x, width)
    rows, below = _neighbours(y, height)

    def at(row: Tensor, column: Tensor) -> Tensor:
        return pixels[(start + row * width)[:, :, None] + column[:, None, :]].float()

    right, below = right[:, None, :, None], below[:, :, None, None]
    upper = torch.lerp(at(rows[0], columns[0]), at(rows[0], columns[1]), right)
    lower = torch.lerp(at(rows[1], columns[0]), at(rows[1], columns[1]), right)
    return torch.lerp(upper, lower, below)


def _neighbours(place: Tensor, length: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The pixels on either side of a place along one axis, and how near the second one is."""
    whole = torch.floor(place)
    first = whole.long()
    last = length - 1
    return (first.clamp(min=0).minimum(last), (first + 1).clamp(min=0).minimum(last)), place - whole
