"""Races: a candidate that is surely worse than those that matter is not judged to the end.

Images are judged in stages, the same ones in the same order for all. After each stage, a candidate is compared with a
rival on what it has been judged on so far, some images at a time: their differences have a mean and a spread. Where the
mean is so far above zero that chance explains it in one of a thousand cases (Student's t), the candidate stops. Its
loss is then the rival's, plus that mean.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

Parts = tuple[float, ...]  # the loss of a candidate on `FEW` images after another

FEW = 16
_MOST = 24  # stages
_IMAGES = 128  # of a stage, at least: smaller ones waste time between them
LEAST = 256  # images that every candidate is judged on
_NORMAL = 3.0902  # what chance exceeds in one of 1,000 cases, for a normal distribution


def stage_size(images: int) -> int:
    """Images of a stage, where there are so many in all."""
    return max(-(-images // _MOST), _IMAGES)


def stopped_early(parts: Parts, of: int) -> bool:
    """Whether these are not all of so many parts; without parts, a candidate was judged in one go."""
    return 0 < len(parts) < of


@dataclass(frozen=True)
class Rival:
    """What a candidate has to be compared with.

    Attributes:
        parts: its loss on every few images.
        loss: its loss on all of them.
    """

    parts: Parts
    loss: float

    def beats(self, parts: Parts) -> bool:
        """Whether a candidate with these losses on the first images is surely worse."""
        if not all(map(math.isfinite, parts)):
            return True
        if not LEAST // FEW <= len(parts) < len(self.parts):
            return False
        differences = self._differences(parts)
        spread = statistics.stdev(differences) / math.sqrt(len(differences))
        return statistics.fmean(differences) > _student(len(differences) - 1) * spread

    def estimate(self, parts: Parts) -> float:
        """The loss on all images of a candidate that stopped early."""
        return self.loss + statistics.fmean(self._differences(parts))

    def _differences(self, parts: Parts) -> list[float]:
        return [own - other for own, other in zip(parts, self.parts, strict=False)]


def _student(freedom: int) -> float:
    """What Student's t exceeds by chance in one of 1,000 cases, to a hundredth from 15 degrees of freedom on."""
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
