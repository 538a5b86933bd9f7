"""Refit: every layer, in the order in which they run, fitted to what the whole network's layer gives.

The cut network runs once, on all images at a time that fit into memory. When a layer is about to run, everything before
it is repaired, and its input is what it will be. First the whole network's input channels are predicted from the ones
at hand, place by place: few numbers, so few images will do. Then the weight is fitted to the whole layer's outputs on
patches, with a ridge that pulls towards the first step's weight.

Where something is added to what a layer gives, as in residual blocks, the sum counts: the layer is fitted to what makes
up for the other part, too, which has changed by then.

Where a ReLU alone reads that, only what it lets through counts: of outputs that should be below zero, those that are
above it should be zero, and others are right as they are. So these targets are moved to what the last fit gave, or to
zero, and the layer is fitted again, a few times.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import Batch
from lcprune.heap import trim
from lcprune.repairs.layers import Layer, at_places, groups_of, patches, places_of, write
from lcprune.repairs.moments import doubt
from lcprune.repairs.stages import Stage, Staged
from lcprune.repairs.stand_ins import can_shift, left_rows, ridge, shift
from lcprune.repairs.statistics import statistics_of
from lcprune.repairs.watch import listening
from lcprune.repairs.wiring import Site, Wiring

ROUNDS = 3  # of fits to moved targets

_CHANNEL_RIDGE, _CHANNEL_NOISE = 1e-3, 0.2  # of the mean square: always, and times the doubt
_PATCH_RIDGE, _PATCH_NOISE = 0.03, 0.5
_PATCHES = 2**26  # numbers in the patches of one layer, at most
_ABLE = 0.01  # of the largest factor of a batch norm: outputs with a smaller one make up for nothing
_WIDEST = 8192  # inputs times taps of a patch: more are not fitted by patch

Noted = dict[str, tuple[Tensor, Tensor]]  # by layer: what it read and gave, (images, channels, places) each


@dataclass(frozen=True, eq=False)
class Fitted:
    """A cut network that is fitted in place.

    `renewing` is entered while it runs: it gives batch norms new statistics, but for those that it is called with, or
    does nothing.
    """

    network: nn.Module
    renewing: Callable[[Collection[str]], contextlib.AbstractContextManager[None]]
    ran: set[str] = field(default_factory=set)  # batch norms that have their statistics


@torch.no_grad()
def refit(
    whole: nn.Module, cuts: Sequence[Fitted], wiring: Wiring, stages: Sequence[Stage], batches: Sequence[Batch]
) -> None:
    """Fit every layer of some networks, all cut by one plan, to what the whole network's layers read and give."""
    runs = [Staged(network, batches) for network in (whole, *(cut.network for cut in cuts))]
    for stage, following in itertools.zip_longest(stages, stages[1:]):
        sites = {site.name: site for site in wiring.sites if site.patched and site.name in stage.layers}
        with _recording(whole, sites, stage) as (seen, beside):
            runs[0].run(stage, following, beside)
        for cut, run in zip(cuts, runs[1:], strict=True):
            ran: list[str] = []
            with (
                cut.renewing(cut.ran),
                listening(cut.network, statistics_of(cut.network), lambda name, *_, ran=ran: ran.append(name)),
                _fitting(whole, cut.network, sites, seen) as beside,
            ):
                run.run(stage, following, beside)
            cut.ran.update(ran)
        trim()


@contextlib.contextmanager
def _recording(whole: nn.Module, sites: Mapping[str, Site], stage: Stage) -> Iterator[tuple[Noted, dict[str, Tensor]]]:
    """While the network runs: what layers read and give, at some places. What is added behind a layer counts as given.

    Also yields what is added, by the layer's name, as soon as it is known.
    """
    found: Noted = {}

    def note(name: str, layer: Layer, args: tuple[Tensor, ...], output: Tensor) -> None:
        wide = layer.weight[0].numel() * groups_of(layer)
        count = len(args[0])  # of images, or of their frames
        if not count:
            return
        most = max(1, min(int(stage.share * places_of(layer, count)), _PATCHES // wide // count))
        read, given = (at_places(layer, tensor, most).float() for tensor in (args[0], output))
        if name in beside:
            given += at_places(layer, beside.pop(name), most).float() * _per_output(whole, sites[name])
        found[name] = read, given

    with listening(whole, sites, note), _added(whole, sites.values()) as beside:
        yield found, beside


@contextlib.contextmanager
def _fitting(whole: nn.Module, small: nn.Module, sites: Mapping[str, Site], seen: Noted) -> Iterator[dict[str, Tensor]]:
    """While a cut network runs: every layer is fitted just before it does. Yields what is added, as `_recording`."""

    def fit(name: str, cut: Layer, args: tuple[Tensor, ...]) -> None:
        site, (before, wanted) = sites[name], seen[name]
        if len(args[0]) != len(before):  # values say what arrives, as boxes: there is nothing to compare
            return
        outputs = site.columns.outputs.to(wanted.device)
        wanted, added = wanted[:, outputs], wanted.new_zeros(1)
        if name in beside:
            added = at_places(cut, beside.pop(name), wanted.shape[2]).float() * _per_output(whole, site)[outputs]
            wanted = wanted - added
        _fit(whole, small, site, args[0], before, wanted, counting(whole, site, added))

    sites = {name: site for name, site in sites.items() if name in seen}  # a network may leave layers out
    with listening(small, sites, fit, before=True), _added(small, sites.values()) as beside:
        yield beside


@contextlib.contextmanager
def _added(model: nn.Module, sites: Iterable[Site]) -> Iterator[dict[str, Tensor]]:
    """While a network runs: what is added to the outputs of a layer, by its name, as soon as it is known."""
    found: dict[str, Tensor] = {}

    def note(layer: str, read: bool, name: str, module: nn.Module, args: Any, output: Any = None) -> None:
        found[layer] = args[0] if read else output

    with contextlib.ExitStack() as stack:
        for site in sites:
            if site.beside is not None:
                name, read = site.beside
                stack.enter_context(listening(model, [name], functools.partial(note, site.name, read), before=read))
        yield found


def _per_output(whole: nn.Module, site: Site) -> Tensor:
    """(outputs, 1): how far a layer's output has to move so that the sum behind moves by one; 0 where it hardly can."""
    layer: Any = whole.get_submodule(site.name)
    if site.norm is None:
        return torch.ones(len(layer.weight), 1, dtype=torch.float32, device=layer.weight.device)
    norm: Any = whole.get_submodule(site.norm)
    factor = (norm.running_var + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight)
    able = factor.abs() > _ABLE * factor.abs().max()
    return torch.where(able, 1 / torch.where(able, factor, 1.0), 0.0).float()[:, None]


def counting(whole: nn.Module, site: Site, added: Tensor) -> tuple[Tensor, Tensor] | None:
    """Between which outputs of a layer the ReLU behind it tells a difference: least and most; None if there is none.

    Args:
        whole: the network before the cut.
        site: where the layer is.
        added: to the outputs that stay, counted as these are: (images, outputs, places), or a zero.
    """
    if site.bounds is None:
        return None
    outputs = site.columns.outputs.to(added.device)
    per, mean, bias = _per_output(whole, site)[outputs], 0.0, 0.0
    if site.norm is not None:
        norm: Any = whole.get_submodule(site.norm)
        mean = norm.running_mean[outputs, None].float()
        bias = 0.0 if norm.bias is None else norm.bias[outputs, None].float()
    low, high = ((bound - bias) * per + mean for bound in site.bounds)
    able = per != 0
    low, high = torch.where(able, low, -math.inf), torch.where(able, high, math.inf)
    return torch.minimum(low, high) - added, torch.maximum(low, high) - added


def _fit(
    whole: nn.Module,
    small: nn.Module,
    site: Site,
    given: Tensor,
    before: Tensor,
    wanted: Tensor,
    counts: tuple[Tensor, Tensor] | None,
) -> None:
    """Fit one layer.

    Args:
        whole: the network before the cut.
        small: the cut one.
        site: where the layer is.
        given: what it is about to read.
        before: what it read in the whole network, at some places.
        wanted: of the outputs that stay, what it shall give, likewise.
        counts: between which of them there is a difference, as `counting` says; None for all.
    """
    cut: Any = small.get_submodule(site.name)
    groups = len(site.columns.source)
    now = at_places(cut, given, before.shape[2]).float()
    if _alike(now, before):  # nothing before it has changed
        gives = None if site.beside is None else at_places(cut, type(cut).forward(cut, given), wanted.shape[2]).float()
        if gives is None or _alike(gives, wanted):
            return
    centred = can_shift(small, site)
    weight = left_rows(whole, site)
    reads = weight.shape[2]
    source = site.columns.source.to(given.device)
    a = before.transpose(0, 1).flatten(1).unflatten(0, (-1, reads))[source]  # (groups, reads, at_places)
    b = now.transpose(0, 1).flatten(1).unflatten(0, (groups, -1))  # (groups, kept, at_places)
    squares = b.square().mean((1, 2)).double()
    a, b = (_centre(a, 2)[0], _centre(b, 2)[0]) if centred else (a, b)
    own, cross = (b @ b.mT).double() / b.shape[2], (a @ b.mT).double() / b.shape[2]
    damp = ridge(own, _CHANNEL_RIDGE + _CHANNEL_NOISE * doubt(own.shape[1], len(given)), squares)
    itself = torch.zeros_like(cross)  # with nothing else known, a channel stands for itself
    kept = site.columns.inputs.to(given.device) % reads
    itself.scatter_(1, kept[:, None, :], 1.0)
    channels = torch.linalg.solve(own + damp, (cross + itself @ damp).mT).mT
    start = torch.einsum("gout,gui->goit", weight, channels)
    # By patches.
    goal = _by_rows(wanted, groups)
    patch = patches(cut, given, wanted.shape[2]).float().unflatten(1, (groups, -1)).transpose(0, 1).flatten(2)
    patch = patch.contiguous()  # of many groups, each product would make copies
    squares = patch.square().mean((1, 2)).double()
    patch, patch_mean = _centre(patch, 1) if centred else (patch, torch.zeros_like(patch[:, :1]))
    flat, mean = start.flatten(2), goal.mean(1, keepdim=True)
    if flat.shape[2] <= _WIDEST:
        gram = own if _reads_places(cut) else (patch.mT @ patch).double() / patch.shape[1]
        share = _PATCH_RIDGE + _PATCH_NOISE * doubt(gram.shape[1], len(given))
        factors = torch.linalg.lu_factor(gram + ridge(gram, share, squares))
        first, first_gives = flat, patch @ flat.float().mT

        def fitted(target: Tensor) -> tuple[Tensor, Tensor]:
            target, mean = _centre(target, 1) if centred else (target, torch.zeros_like(target[:, :1]))
            error = (patch.mT @ (target - first_gives)).double() / patch.shape[1]
            return first + torch.linalg.lu_solve(*factors, error).mT, mean

        flat, mean = fitted(goal)
        if counts is not None:
            least, most = (_by_rows(end.expand_as(wanted), groups) for end in counts)
            for _ in range(ROUNDS):
                gives = patch @ flat.float().mT + mean
                moved = torch.where(goal <= least, gives.minimum(least), goal)
                flat, mean = fitted(torch.where(goal >= most, gives.maximum(most), moved))
    if not bool(flat.isfinite().all()):
        return
    write(cut, flat.reshape(start.shape))
    if centred:
        offset = (mean.double() - patch_mean.double() @ flat.mT).flatten()
        shift(small, site, offset if cut.bias is None else offset - cut.bias.double())


def _reads_places(layer: Layer) -> bool:
    """Whether a patch is what lies at the output's own place."""
    if isinstance(layer, nn.Linear):
        return True
    return max(*layer.kernel_size, *layer.stride) == 1 and not any(layer.padding)


def _by_rows(values: Tensor, groups: int) -> Tensor:
    """(images, outputs, places) -> (groups, images * places, outputs of a group)."""
    return values.transpose(1, 2).flatten(0, 1).unflatten(1, (groups, -1)).transpose(0, 1).contiguous()


def _alike(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def _centre(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    mean = values.mean(dim, keepdim=True)
    return values - mean, mean
