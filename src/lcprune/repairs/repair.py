"""A cut network that works without training: closed forms from a few unlabelled images."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.batches import Batch, arithmetic, check_samples, check_weights, collate, draw, together
from lcprune.copies import copy_to_run, copy_with, named_tensors, trainable, unwrap
from lcprune.errors import ConfigError, DataError
from lcprune.graph.skeleton import untouched
from lcprune.plan import Plan
from lcprune.progress import Progress
from lcprune.repairs.distance import Distance
from lcprune.repairs.distil import WAYS, distil
from lcprune.repairs.moments import measuring
from lcprune.repairs.refit import recording, refit
from lcprune.repairs.stand_ins import stand_in
from lcprune.repairs.statistics import Renewal, statistics_of
from lcprune.repairs.wiring import Wiring, look

logger = logging.getLogger("lcprune")

AUTO, NONE = "auto", "none"
STATISTICS, STAND_INS, REFIT, DISTIL = "statistics", "stand-ins", "refit", "distil"
HOW = (AUTO, NONE, STATISTICS, STAND_INS, REFIT, DISTIL)
IMAGES = 1000

_BATCH = 100
_CPU_NUMBERS = 2**23  # between two layers, for all images of a batch: more are new pages every time
_RENEWING = 1000  # images, at most, that new statistics are told from
_FAR = 0.2  # from the whole network: nearer ones follow it from image to image
_HELD_BACK = 5  # one of so many images judges, and is not fitted to
_BYTES = 2**30  # for what a refit keeps in memory at once, on a CPU


@dataclass(frozen=True)
class Repair:
    """What was done to a cut network, and what it was good for.

    Attributes:
        how: what was done: "none", "statistics", "stand-ins", "refit" or "distil".
        distances: what was tried -> distance of its outputs from the whole network's, on images held back: squared
            difference, as a share of how much the outputs differ from image to image; of scores of classes, the
            divergence of probabilities. "none" is the network as cut.
        images: unlabelled ones that were fitted to.
        seconds: that it took.
        measure: what the distances are: "distance" or "divergence".
        left: layers that read fewer channels and could not be repaired -> why.
    """

    how: str
    distances: dict[str, float] = field(default_factory=dict)
    images: int = 0
    seconds: float = 0.0
    measure: str = "distance"
    left: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, for the plan; without the time, so that the same run gives the same plan."""
        plain = asdict(self)
        del plain["seconds"]
        return plain | {"distances": {k: v if math.isfinite(v) else None for k, v in self.distances.items()}}

    def __str__(self) -> str:
        if not self.distances:
            return "left as cut"
        before, after = self.distances[NONE], self.distances[self.how]
        words = "left as cut" if self.how == NONE else f"repaired ({self.how})"
        return (
            f"{words}: {self.measure} from the whole network {before:.3g} as cut, {after:.3g} now, {self.images} images"
        )


@trainable
def repair(
    model: nn.Module,
    plan: Plan,
    data: Iterable[Any],
    how: str = AUTO,
    *,
    images: int = IMAGES,
    classes: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> nn.Module:
    """Cut a network by a plan and repair it with a few unlabelled images.

    Args:
        model: the whole network; it is not changed.
        plan: what to keep.
        data: batches of inputs alone, or of (input, target), whose targets are not looked at.
        how: "auto" tries new batch-norm statistics, stand-ins and a refit, and takes what is closest to the whole
            network on images that are held back from fitting; or one of "none", "statistics", "stand-ins", "refit"; or
            "distil", which trains the cut network to give what the whole one gives, at two learning rates, and takes
            the closer.
        images: that are drawn from the data.
        classes: outputs are scores of classes, so that what counts is the divergence of their probabilities.
        seed: of the draw.
        progress: show a bar.

    Returns:
        The smaller network, at least as close to the whole one as the network as cut.

    Raises:
        DataError: there are no images, or the network gives nothing finite on them.
    """
    whole = unwrap(model)
    small = plan.apply(whole)
    if check_how(how) == NONE:
        return small
    check_weights(whole)
    samples = draw(data, images, seed)
    check_samples(whole, samples)
    return mend(whole, plan, small, samples, how, classes=classes, seed=seed, progress=progress)[0]


def check_how(how: str) -> str:
    """The name of a repair.

    Raises:
        ConfigError: there is none of this name.
    """
    if how not in HOW:
        raise ConfigError(f"repair={how!r} is not known; choose one of {', '.join(map(repr, HOW))}")
    return how


def mend(
    whole: nn.Module,
    plan: Plan,
    small: nn.Module,
    samples: Sequence[tuple[Any, Any]],
    how: str = AUTO,
    *,
    images: int = IMAGES,
    classes: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> tuple[nn.Module, Repair]:
    """Repair a network that a plan has made.

    Args:
        whole: the network before the cut; it is not changed.
        plan: what was cut of it.
        small: the network as cut; it is not changed.
        samples: images, as (input, target) pairs; targets are not looked at.
        how: as in `repair`.
        images: of the samples that are used, drawn with the seed.
        classes: as in `repair`.
        seed: of the draw.
        progress: show a bar.

    Returns:
        The repaired network, or the one as cut where that is closer to the whole one; and what was done.

    Raises:
        DataError: there are no images, or the network gives nothing finite on them.
    """
    began = time.perf_counter()
    if check_how(how) == NONE or all(len(plan.kept[name]) == size for name, size in plan.sizes.items()):
        return small, Repair(NONE)
    if not samples:
        raise DataError("there are no images to repair with: give at least one")
    whole, small = unwrap(whole), unwrap(small)
    chosen = np.random.default_rng(seed).permutation(len(samples))[:images]
    some = [samples[index] for index in chosen]
    held = some[: max(1, len(some) // _HELD_BACK)]
    fitted = some[len(held) :] or some
    with untouched(whole), untouched(small), arithmetic():
        work = _Work(copy_to_run(whole), plan, small, fitted, held, how, classes, seed, progress)
        network, name = work.best(how)
    seconds = round(time.perf_counter() - began, 3)
    done = Repair(name, work.distances, len(fitted), seconds, work.judge.measure, work.wiring.left)
    logger.info("%s", done)
    for layer, why in work.wiring.left.items():
        logger.info("%s is left as cut: %s", layer, why)
    return network, done


class _Work:
    """One network being repaired in several ways."""

    def __init__(
        self,
        whole: nn.Module,
        plan: Plan,
        small: nn.Module,
        fitted: Sequence[tuple[Any, Any]],
        held: Sequence[tuple[Any, Any]],
        how: str,
        classes: bool,
        seed: int,
        progress: bool,
    ) -> None:
        self.whole, self.small, self.plan = whole, small, plan
        self.seed, self.progress = seed, progress
        self.asked = (STATISTICS, STAND_INS, REFIT) if how in (AUTO, DISTIL) else (how,)
        device = next(whole.parameters()).device
        self.wiring: Wiring = look(whole, plan, collate(fitted[:2], 2, device)[0].inputs)
        size = _BATCH if device.type == "cuda" else max(1, min(_BATCH, _CPU_NUMBERS // max(1, self.wiring.numbers)))
        self.fitted = collate(fitted, size, device)
        self.judge = Distance(whole, collate(held, size, device), classes)
        renewing = collate(fitted[:_RENEWING], _BATCH, device)
        self.renewal = Renewal(whole, renewing) if statistics_of(small) else None
        # One pass of the whole network over the images serves all.
        self.part = self._at_once() if REFIT in self.asked else []
        with (
            measuring(whole, self.wiring.sites if how != STATISTICS else ()) as self.moments,
            recording(whole, self.wiring, self.part, self._room() // 4) as self.seen,
        ):
            self.fit_judge = Distance(whole, self.fitted, classes)
        self.distances: dict[str, float] = {}

    def best(self, how: str) -> tuple[nn.Module, str]:
        """The closest of the networks that `how` asks for and the one as cut."""
        start = copy_to_run(self.small)
        self.distances[NONE] = self.judge(start)
        kept: dict[str, nn.Module] = {NONE: start}

        def consider(name: str, network: nn.Module) -> float:
            apart = self.judge(network)
            if apart < self.distances.get(name, math.inf):
                self.distances[name], kept[name] = apart, network
            return apart

        def attempt(name: str, way: Callable[[nn.Module], None]) -> float:
            network = copy_to_run(self.small)
            way(network)
            return consider(name, network)

        ways = [(name, way) for name in self.asked for way in self._ways(name)]
        apart: dict[str, list[float]] = {}
        with Progress("repair", len(ways), self.progress) as bar:
            for name, way in ways:
                apart.setdefault(name, []).append(attempt(name, way))
                bar.advance(how=name, distance=f"{apart[name][-1]:.3g}")
        order = sorted(kept, key=lambda name: self.distances[name])
        if len(tried := apart.get(order[0], [])) == 2 and tried[1] >= tried[0] > _FAR:
            # Statistics that follow the whole network's did not help: so little is left of it that the images' own may.
            attempt(order[0], self._way(order[0], False))
        if how == DISTIL:
            images = together(self.fitted)
            for manner in WAYS:
                network = copy_to_run(kept[order[0]])
                distil(self.whole, network, self.wiring, images, manner, self.seed, self.progress)
                consider(DISTIL, network)
                if self.renewal is not None:
                    network = copy_to_run(network)
                    self.renewal(network, self.plan)
                    consider(DISTIL, network)
            order = sorted(kept, key=lambda name: self.distances[name])
        # Closer on images that were held back and farther on those that were fitted: chance.
        as_cut = self.fit_judge(start)
        name = next(name for name in order if name == NONE or self.fit_judge(kept[name]) <= as_cut)
        if name == NONE and how != AUTO:
            logger.warning("repair=%r makes this network no better, so it is left as it was cut", how)
        if name == NONE:
            return self.small, NONE
        network = kept[name]
        for (_, new), (_, old) in zip(network.named_modules(), self.small.named_modules(), strict=True):
            new.training = old.training
        return network, name

    def _ways(self, how: str) -> Iterator[Callable[[nn.Module], None]]:
        """Functions that repair in place: without and with new statistics, where there are some."""
        for follow in (None, True) if self.renewal is not None else (None,):
            if how in (STAND_INS, REFIT) or (how == STATISTICS and follow):
                yield self._way(how, follow)

    def _way(self, how: str, follow: bool | None) -> Callable[[nn.Module], None]:
        """A repair with new statistics that follow the whole network's, that are the images' own, or without."""
        known: dict[str, Callable[..., None]] = {STATISTICS: self._renew, STAND_INS: self._stand_in, REFIT: self._refit}
        return functools.partial(known[how], follow)

    def _renew(self, follow: bool, network: nn.Module) -> None:
        assert self.renewal is not None
        self.renewal(network, self.plan, follow)

    def _stand_in(self, follow: bool | None, network: nn.Module) -> None:
        stand_in(self.whole, network, self.wiring.sites, self.moments)
        if follow is not None:
            self._renew(follow, network)

    def _refit(self, follow: bool | None, network: nn.Module) -> None:
        others = [site for site in self.wiring.sites if site.cut and not site.patched]
        if others:
            stand_in(self.whole, network, others, self.moments)
        renewing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.renewal is not None and follow is not None:
            numbers = range(len(self.renewal.batches))
            renewing = self.renewal.renewing(network, self.plan.cuts, numbers, follow=follow)
        refit(self.whole, network, self.wiring, self.seen, self.part, renewing)

    def _room(self) -> int:
        """Bytes that a refit may take."""
        device = next(self.whole.parameters()).device
        return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else _BYTES

    def _at_once(self) -> list[Batch]:
        """As many batches as one pass has room for."""
        most = max(1, self._room() // (4 * 4 * max(1, self.wiring.numbers)))  # about four float32 tensors at a time
        return self.fitted[: max(1, most // self.fitted[0].size)]


def expand(whole: nn.Module, plan: Plan, small: nn.Module) -> nn.Module:
    """The whole network with the small one's numbers wherever the plan keeps some: the plan cuts it to the small one.

    Args:
        whole: the network before the cut; it is not changed.
        plan: what was cut of it.
        small: what the plan made, with any weights.
    """
    numbers = {name: tensor.detach() for name, tensor in named_tensors(unwrap(small))}

    def change(name: str, tensor: Tensor) -> Tensor:
        own = plan.cuts.get(name, {})
        result = tensor.clone()
        positions = (own.get(dim, np.arange(size)) for dim, size in enumerate(tensor.shape))
        result[tuple(torch.from_numpy(index).to(tensor.device) for index in np.ix_(*positions))] = numbers[name].to(
            tensor.device
        )
        return result

    return copy_with(unwrap(whole), change)
