"""New batch-norm statistics: the first thing that a cut network needs.

A few images differ from all others by chance, and so do their statistics. How far those of the whole network, on these
images, are from the ones that it keeps tells by how much. That is taken off again, as far as the cut network's channel
follows the whole one's from image to image:

    mean      =  mean of the cut network - c (mean of the whole one - the one that it keeps)
    variance  =  variance of the cut network * (the one that the whole one keeps / its variance)^d

with the slopes c and d, from 0 to 1, of the cut network's means and relative mean squares over the whole one's, image
by image. With nothing cut, c = d = 1, and nothing changes. With c = d = 0 they are the images' own, which is
better where so much is cut that the two networks have little in common.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lcprune.batches import Batch, call
from lcprune.plan import Plan
from lcprune.repairs.watch import listening

Pair = tuple[Tensor, Tensor]  # of every channel, for every image or for all: mean and mean square, or variance

_KNOWN = 1e-3  # of the variance: where images show less than this, both networks are taken to agree
_TINY = 1e-18  # of channels that never vary


def statistics_of(model: nn.Module) -> dict[str, Any]:
    """The batch norms of a network that keep statistics."""
    norms = ((name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm))
    return {name: norm for name, norm in norms if norm.running_mean is not None}


class Renewal:
    """New statistics for every cut of one network, told from some images.

    The whole network is not changed, and all runs in evaluation mode.
    """

    def __init__(self, whole: nn.Module, batches: Sequence[Batch]) -> None:
        self.batches = batches
        norms = statistics_of(whole)
        kept = ((name, norm.running_mean, norm.running_var) for name, norm in norms.items())
        self._kept = {name: (mean.float().clone(), variance.float().clone()) for name, mean, variance in kept}
        self._read: list[dict[str, list[Pair]]] = []  # by the runs of each norm, batch by batch
        # What was asked last of each norm. A captured CUDA graph reads it at its address: one board asks one thing.
        self._told: dict[str, tuple[Any, _Whole]] = {}

        def note(name: str, norm: Any, args: tuple[Tensor, ...]) -> None:
            self._read[-1].setdefault(name, []).append(_rows(args[0], norm.running_mean))

        with listening(whole, norms, note, before=True), torch.no_grad():
            for batch in batches:
                self._read.append({})
                call(whole, batch.inputs)
        self._several = [name for name in norms if any(len(read.get(name, ())) > 1 for read in self._read)]

    def restore(self, network: nn.Module) -> None:
        """Give norms that run several times the statistics that the whole network keeps, in place.

        They take new ones in their last run: until then, they would use those that were found before.
        """
        if self._several:
            norms: list[Any] = [network.get_submodule(name) for name in self._several]
            kept = [self._kept[name] for name in self._several]
            torch._foreach_copy_([norm.running_mean for norm in norms], [mean for mean, _ in kept])
            torch._foreach_copy_([norm.running_var for norm in norms], [variance for _, variance in kept])

    def __call__(self, small: nn.Module, plan: Plan, follow: bool = True) -> None:
        """Renew the statistics of a cut network, in place; all batches count alike.

        With `follow`, what the images have by chance is taken off; else the statistics are the images' own.
        """
        found: dict[str, list[Pair]] = {}
        for number, batch in enumerate(self.batches):
            with self.renewing(small, plan.cuts, [number], found, follow), torch.no_grad():
                call(small.eval(), batch.inputs)
        for name, new in found.items():
            norm: Any = small.get_submodule(name)
            means, variances = zip(*new, strict=True)
            norm.running_mean.copy_(torch.stack(means).mean(0))
            norm.running_var.copy_(torch.stack(variances).mean(0))

    @contextlib.contextmanager
    def renewing(
        self,
        small: nn.Module,
        cuts: Mapping[str, Mapping[int, Any]],
        numbers: Sequence[int],
        found: dict[str, list[Pair]] | None = None,
        follow: bool = True,
        others: Collection[str] = (),
    ) -> Iterator[None]:
        """While the cut network runs: every norm takes new statistics just before it uses them.

        Args:
            small: in evaluation mode.
            cuts: of the plan; none, if channels are silenced and still there.
            numbers: of the batches that it runs on, as one: on some of their images, or on more.
            found: gets mean and variance of every norm.
            follow: as when called.
            others: names of norms that keep theirs.
        """
        read: dict[str, list[Pair]] = {}

        def renew(name: str, norm: Any, args: tuple[Tensor, ...]) -> None:
            if name in others:
                return
            heard = [self._read[number].get(name, []) for number in numbers]
            runs = [_joined(parts) for parts in zip(*heard, strict=False)]
            pairs = read.setdefault(name, [])
            if len(pairs) == len(runs):
                return  # it runs more often than in the whole network
            left: Any = cuts.get(f"{name}.running_mean", {}).get(0, slice(None))
            images = min(len(args[0]), len(runs[len(pairs)][0]))
            pairs.append(_rows(args[0][:images], self._kept[name][0][left]))
            if len(pairs) < len(runs):
                return  # a norm that runs again has the statistics of all its runs
            whole = self._whole(name, numbers, runs, [len(own) for own, _ in pairs])
            new = _estimate(_Whole(*(part[..., left] for part in whole)), _joined(pairs), follow)
            norm.running_mean.copy_(new[0])
            norm.running_var.copy_(new[1])
            if found is not None:
                found.setdefault(name, []).append(new)

        with listening(small, statistics_of(small), renew, before=True):
            yield

    def _whole(self, name: str, numbers: Sequence[int], runs: Sequence[Pair], images: Sequence[int]) -> _Whole:
        """What the whole network's norm read on these batches, of so many images in each of its runs."""
        asked = tuple(numbers), tuple(images)
        if name not in self._told or self._told[name][0] != asked:
            read = _joined([(first[:some], second[:some]) for (first, second), some in zip(runs, images, strict=True)])
            self._told[name] = asked, _Whole.of(*self._kept[name], read)
        return self._told[name][1]


class _Whole(NamedTuple):
    """What the whole network's norm keeps and reads, channels last: all of `_estimate` that no cut changes."""

    mean: Tensor
    variance: Tensor
    little: Tensor
    theirs: Tensor  # mean on the images, less the one that it keeps
    factor: Tensor  # from the images' variance to the one that it keeps
    apart: Tensor  # (images, channels) how far means are from that of all
    relative: Tensor  # (images, channels) likewise mean squares, by share
    apart_squares: Tensor
    relative_squares: Tensor

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, read: Pair) -> _Whole:
        theirs, squares = (part.mean(0) for part in read)
        little = _KNOWN * variance + _TINY
        factor = (variance + little) / (squares - theirs.square() + little)
        apart, relative = read[0] - theirs, (read[1] - squares) / (squares + little)
        both = apart.square().mean(0) + little, relative.square().mean(0) + _KNOWN
        return cls(mean, variance, little, theirs, factor, apart, relative, *both)


def _joined(parts: Sequence[Pair]) -> Pair:
    if len(parts) == 1:
        return parts[0]
    first, second = zip(*parts, strict=True)
    return torch.cat(first), torch.cat(second)


def _estimate(whole: _Whole, own: Pair, follow: bool) -> Pair:
    """Mean and variance of what a norm of the cut network reads: of all images, or without `follow` of these few.

    On the few images the cut network reads `own`, less the mean that the whole one keeps.
    """
    ours, squares = (part.mean(0) for part in own)
    spread = squares - ours.square()
    if not follow:
        return whole.mean + ours, spread.clamp(min=0)
    little = whole.little
    follows = _slope((own[0] - ours) * whole.apart, whole.apart_squares, little)
    relative = (own[1] - squares) / (squares + little)
    power = _slope(relative * whole.relative, whole.relative_squares, _KNOWN)
    renewed = (spread + little) * whole.factor**power - little
    return whole.mean + ours - follows * whole.theirs, renewed.clamp(min=0)


def _slope(products: Tensor, squares: Tensor, little: Tensor | float) -> Tensor:
    """By how much one network's channels change from image to image where the other's change by one."""
    return ((products.mean(0) + little) / squares).clamp(0, 1)


def _rows(values: Tensor, around: Tensor) -> Pair:
    """(images, channels) mean and mean square of what a norm reads, less the mean that it keeps."""
    places = [*range(2, values.ndim)]
    values = values.float() - around.view(-1, *[1] * len(places))
    if not places:
        return values, values.square()
    # Several times as fast as `torch.var_mean` on a CPU.
    squares = torch.linalg.vector_norm(values, dim=places).square() / values[0, 0].numel()
    return values.mean(places), squares


@torch.no_grad()
def renew_statistics(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replace batch-norm statistics by those of `batches`, in place; the network ends in evaluation mode.

    Every batch counts the same, so those of no more than half the first one's size, as a last one may be, are left out:
    they would weigh too much, and one image may have no variance at all. An error leaves statistics as they were.
    """
    norms = statistics_of(model).values()
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    before = [copy.deepcopy(norm.state_dict()) for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
        norm.train()
    full = 0
    try:
        for batch in batches:
            full = full or batch.size
            if 2 * batch.size > full:
                call(model, batch.inputs)
    except BaseException:
        for norm, state in zip(norms, before, strict=True):
            norm.load_state_dict(state)
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
