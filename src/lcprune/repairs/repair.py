"""A cut network that works without training: closed forms from a few unlabelled images."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.batches import Batch, alone, arithmetic, check_samples, check_weights, collate, draw, together
from lcprune.copies import copy_to_run, copy_with, named_tensors, trainable, unwrap
from lcprune.errors import ConfigError, DataError
from lcprune.graph.skeleton import untouched
from lcprune.heap import memory_kept
from lcprune.plan import Plan, need_plan
from lcprune.progress import Progress
from lcprune.repairs.distance import Distance
from lcprune.repairs.distil import RATES, distil
from lcprune.repairs.moments import measuring
from lcprune.repairs.refit import Fitted, refit
from lcprune.repairs.stages import plan_stages
from lcprune.repairs.stand_ins import stand_in
from lcprune.repairs.statistics import Renewal, statistics_of
from lcprune.repairs.wiring import look

logger = logging.getLogger("lcprune")

AUTO, NONE = "auto", "none"
STATISTICS, STAND_INS, REFIT, DISTIL = "statistics", "stand-ins", "refit", "distil"
MIXTURE = "mixture"  # of stand-ins and a refit
HOW = (AUTO, NONE, STATISTICS, STAND_INS, REFIT, DISTIL)
IMAGES = 1000

_BATCH = 100
_CPU_NUMBERS = 2**23  # between two layers, for all images of a batch: more are new pages every time
_RENEWING = 1000  # images, at most, that new statistics are told from
_FAR = 0.2  # from the whole network: nearer ones follow it from image to image
_HELD_BACK = 5  # one of so many images judges, and is not fitted to
_BYTES = 2**30  # for what a refit keeps in memory at once, on a CPU
_SHARES = (0.25, 0.5, 0.75)  # of the refit in a mixture


@dataclass(frozen=True)
class Repair:
    """What was done to a cut network, and what it was good for.

    Attributes:
        how: what was done: "none", "statistics", "stand-ins", "refit", "mixture" (of these two) or "distil".
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
        how: "auto" tries new batch-norm statistics, stand-ins, a refit, and means of the last two, and takes what is
            closest to the whole network on images that are held back from fitting; or one of "none", "statistics",
            "stand-ins", "refit"; or "distil", which trains the cut network to give what the whole one gives, at two
            learning rates, and takes the closer.
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
    small = need_plan(plan).apply(whole)
    if check_how(how) == NONE:
        return small
    check_weights(whole)
    samples = draw(data, images, seed)
    check_samples(whole, samples)
    return mend(whole, plan, small, samples, how, classes=classes, seed=seed, progress=progress)[0]


def check_how(how: str) -> str:
    """The name of a repair; others are refused."""
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
    """Repair a network that a plan has made; arguments are those of `repair`, with the network as cut and drawn images.

    Returns:
        The repaired network, or the one as cut where that is closer to the whole one; and what was done. Neither of the
        networks given is changed.

    Raises:
        DataError: there are no images, or the network gives nothing finite on them.
    """
    began = time.perf_counter()
    if check_how(how) == NONE or all(len(plan.kept[name]) == size for name, size in plan.sizes.items()):
        return small, Repair(NONE)
    if not samples:
        raise DataError("there are no images to repair with: give at least one")
    whole, small = unwrap(whole), unwrap(small)
    shown = alone(samples)
    some = [shown[index] for index in np.random.default_rng(seed).permutation(len(samples))[:images]]
    held = some[: max(1, len(some) // _HELD_BACK)]
    fitted = some[len(held) :]
    fitted, held = (fitted, held) if fitted else (held, fitted)  # a single image does both
    with untouched(whole), untouched(small), arithmetic(), memory_kept():
        work = _Work(copy_to_run(whole), plan, small, fitted, held, how, classes)
        name = work.best(how, seed, progress)
    seconds = round(time.perf_counter() - began, 3)
    done = Repair(name, work.distances, len(fitted), seconds, work.judge.measure, work.wiring.left)
    logger.info("%s", done)
    for layer, why in work.wiring.left.items():
        logger.info("%s is left as cut: %s", layer, why)
    if name == NONE:
        return small, done
    for new, old in zip(work.kept[name].modules(), small.modules(), strict=True):
        new.training = old.training
    return work.kept[name], done


class _Work:
    """One network being repaired in several ways.

    Attributes:
        distances: by what was tried, the least distance from the whole network; "none" is the network as cut.
        kept: the network that has it.
    """

    def __init__(
        self,
        whole: nn.Module,
        plan: Plan,
        small: nn.Module,
        fitted: Sequence[tuple[Any, Any]],
        held: Sequence[tuple[Any, Any]],
        how: str,
        classes: bool,
    ) -> None:
        self.whole, self.small, self.plan = whole, small, plan
        self.asked = (STATISTICS, STAND_INS, REFIT) if how in (AUTO, DISTIL) else (how,)
        device = next(whole.parameters()).device
        (every,) = collate([*fitted, *held], len(fitted) + len(held), device)  # once: batches are parts of it
        first, rest = range(len(fitted)), range(len(fitted), every.size)
        self.wiring = look(whole, plan, _parts(every, first[:2], 2)[0].inputs)
        numbers, cuda = max(1, self.wiring.gates[0].numbers), device.type == "cuda"
        size = _BATCH if cuda else max(1, min(_BATCH, _CPU_NUMBERS // numbers))
        self.fitted = _parts(every, first, size)
        self.judge = Distance(whole, _parts(every, rest or first, size), classes)
        self.renewal = Renewal(whole, _parts(every, first[:_RENEWING], _BATCH)) if statistics_of(small) else None
        room = torch.cuda.mem_get_info(device)[0] // 4 if cuda else _BYTES  # for a refit
        self.stages = plan_stages(self.whole, self.wiring.gates, self.fitted, room) if REFIT in self.asked else []
        with measuring(whole, self.wiring.sites if how != STATISTICS else ()) as self.moments:
            self.fit_judge = Distance(whole, self.fitted, classes)
        start = copy_to_run(small)
        self.distances = {NONE: self.judge(start)}
        self.kept = {NONE: start}

    def best(self, how: str, seed: int, progress: bool) -> str:
        """The closest of the networks that `how` asks for and the one as cut."""
        # Without new statistics, and with such that follow the whole network's.
        follows = (None, True) if self.renewal is not None else (None,)
        ways = {name: [follow for follow in follows if name != STATISTICS or follow] for name in self.asked}
        apart: dict[str, list[float]] = {}
        with Progress("repair", len(ways), progress) as bar:
            for name, own in ways.items():
                apart[name] = self._try(name, own)
                bar.advance(how=name, distance=f"{min(apart[name], default=math.inf):.3g}")
        best = self._order()[0]
        if len(tried := apart.get(best, [])) == 2 and tried[1] >= tried[0] > _FAR:
            # Statistics that follow the whole network's did not help: so little is left of it that the images' own may.
            self._try(best, [False])
        if how in (AUTO, DISTIL):
            self._mix()
            best = self._order()[0]
        if how == DISTIL:
            images = together(self.fitted)
            for rate in RATES:
                network = copy_to_run(self.kept[best])
                distil(self.whole, network, self.wiring, images, rate, seed, progress)
                self._consider(DISTIL, network)
                if self.renewal is not None:
                    network = copy_to_run(network)
                    self.renewal(network, self.plan)
                    self._consider(DISTIL, network)
        # Closer on images that were held back and farther on those that were fitted: chance.
        as_cut = self.fit_judge(self.kept[NONE])
        name = next(name for name in self._order() if name == NONE or self.fit_judge(self.kept[name]) <= as_cut)
        if name == NONE and how != AUTO:
            logger.warning("repair=%r makes this network no better, so it is left as it was cut", how)
        return name

    def _order(self) -> list[str]:
        return sorted(self.kept, key=lambda name: self.distances[name])

    def _try(self, name: str, follows: Sequence[bool | None]) -> list[float]:
        """Repair with new statistics that follow the whole network's, with the images' own, or without: distances."""
        networks = [copy_to_run(self.small) for _ in follows]
        for network, follow in zip(networks, follows, strict=True):
            if name in (STAND_INS, REFIT):
                sites = [site for site in self.wiring.sites if name == STAND_INS or not site.patched]
                stand_in(self.whole, network, sites, self.moments)
            if name != REFIT and self.renewal is not None and follow is not None:
                self.renewal(network, self.plan, follow)
        if name == REFIT:
            pairs = zip(networks, follows, strict=True)
            cuts = [Fitted(network, functools.partial(self._renewing, network, follow)) for network, follow in pairs]
            refit(self.whole, cuts, self.wiring, self.stages, self.fitted)
        return [self._consider(name, network) for network in networks]

    def _mix(self) -> None:
        """Try means of what stand-ins and a refit gave. Both miss the whole network in their own way."""
        if not self.kept.keys() >= {STAND_INS, REFIT}:
            return
        refitted = dict(named_tensors(self.kept[REFIT]))
        for share in _SHARES:
            network = copy_to_run(self.kept[STAND_INS])
            with torch.no_grad():
                for name, tensor in named_tensors(network):
                    if tensor.is_floating_point():
                        tensor.lerp_(refitted[name], share)
            self._consider(MIXTURE, network)

    def _renewing(
        self, network: nn.Module, follow: bool | None, others: Collection[str]
    ) -> contextlib.AbstractContextManager[None]:
        if self.renewal is None or follow is None:
            return contextlib.nullcontext()
        # What a ReLU hides may be anything after a refit: it says nothing about the norm before it.
        hidden = {site.norm for site in self.wiring.sites if site.patched and site.bounds and site.norm}
        numbers = range(len(self.renewal.batches))
        return self.renewal.renewing(network, self.plan.cuts, numbers, follow=follow, others={*others, *hidden})

    def _consider(self, name: str, network: nn.Module) -> float:
        apart = self.judge(network)
        if apart < self.distances.get(name, math.inf):
            self.distances[name], self.kept[name] = apart, network
        return apart


def _parts(batch: Batch, which: range, size: int) -> list[Batch]:
    """Neighbouring images of a batch, so many at a time."""
    ends = [(start, min(start + size, which.stop)) for start in range(which.start, which.stop, size)]
    return [Batch(batch.at(slice(*end))[0], (), end[1] - end[0]) for end in ends]


def expand(whole: nn.Module, plan: Plan, small: nn.Module) -> nn.Module:
    """The whole network with the small one's numbers wherever the plan keeps some: it cuts it to the small one."""
    numbers = {name: tensor.detach() for name, tensor in named_tensors(unwrap(small))}

    def change(name: str, tensor: Tensor) -> Tensor:
        own = plan.cuts.get(name, {})
        result = tensor.clone()
        kept = np.ix_(*(own.get(dim, np.arange(size)) for dim, size in enumerate(tensor.shape)))
        index = tuple(torch.from_numpy(part).to(tensor.device) for part in kept)
        result[index] = numbers[name].to(tensor.device)
        return result

    return copy_with(unwrap(whole), change)
