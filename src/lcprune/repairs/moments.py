"""Means and covariances of what layers read: one pass over some images serves every later cut."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lcprune.batches import Batch, call
from lcprune.repairs.layers import Layer, at_places
from lcprune.repairs.watch import LayerRun, listening
from lcprune.repairs.wiring import Site

_PLACES = 256  # of a feature map, at most: neighbours say nearly the same
_ENOUGH = 20  # images per channel, to know how channels are related
_NOISE = 0.01  # what doubt adds to every variance, as a share of the mean one


@dataclass(eq=False)
class Moments:
    """Sums over an input's rows, one row per image and place."""

    shift: Tensor  # what is subtracted first, about the mean, so that nothing cancels
    total: Tensor  # sum of the rows
    products: Tensor  # sums of the products of two channels
    count: int = 0  # of rows
    images: int = 0  # that they come from

    @classmethod
    def like(cls, values: Tensor) -> Moments:
        """Nothing summed yet, for (images, channels, places)."""
        shift = values.float().mean((0, 2))
        total = torch.zeros_like(shift, dtype=torch.float64)
        return cls(shift, total, total.new_zeros(len(total), len(total)))

    def add(self, values: Tensor) -> None:
        """Take in (images, channels, places)."""
        flat = (values.float() - self.shift[:, None]).transpose(0, 1).flatten(1)
        self.total += flat.sum(1, dtype=torch.float64)
        self.products += (flat @ flat.T).double()
        self.count += flat.shape[1]
        self.images += len(values)

    @property
    def mean(self) -> Tensor:
        """Of every channel."""
        return self.total / self.count + self.shift.double()

    @property
    def second(self) -> Tensor:
        """Mean product of every pair of channels, not centred."""
        mean, shift = self.total / self.count, self.shift.double()
        return self.products / self.count + torch.outer(mean, shift) + torch.outer(shift, mean + shift)


def doubt(channels: int, images: int) -> float:
    """Channels per image, beyond those that images tell well: few images of many channels show what is not there."""
    return max(0.0, channels / images - 1 / _ENOUGH)


def mean_and_second(parts: Sequence[Moments]) -> tuple[Tensor, Tensor]:
    """Mean and second moment of all runs of a layer; the more doubt, the less channels are related."""
    count = sum(part.count for part in parts)
    mean = torch.stack([part.mean * (part.count / count) for part in parts]).sum(0)
    second = torch.stack([part.second * (part.count / count) for part in parts]).sum(0)
    variance = (second.diagonal() - mean.square()).mean().clamp(min=0)
    second.diagonal().add_(_NOISE * doubt(len(mean), parts[0].images) * variance)
    return mean, second


@contextlib.contextmanager
def measuring(model: nn.Module, sites: Sequence[Site]) -> Iterator[dict[LayerRun, Moments]]:
    """While the whole network runs: the moments of every input that layers with fewer channels read, each once."""
    wanted = {run: site.columns.taps for site in sites if site.cut for run in site.runs}
    found: dict[LayerRun, Moments] = {}
    runs: Counter[str] = Counter()

    def begin(name: str, model: nn.Module, args: tuple[Tensor, ...]) -> None:
        runs.clear()

    def note(name: str, layer: Layer, args: tuple[Tensor, ...]) -> None:
        run = name, runs[name]
        runs[name] += 1
        if run in wanted:
            values = at_places(layer, args[0], _PLACES, wanted[run])
            found.setdefault(run, Moments.like(values)).add(values)

    with listening(model, [""], begin, before=True), listening(model, {name for name, _ in wanted}, note, before=True):
        yield found


def measure_moments(model: nn.Module, sites: Sequence[Site], batches: Sequence[Batch]) -> dict[LayerRun, Moments]:
    """The moments on some images."""
    with measuring(model, sites) as found, torch.no_grad():
        for batch in batches:
            call(model, batch.inputs)
    return found
