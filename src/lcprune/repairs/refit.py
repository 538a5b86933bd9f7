"""Refit: every layer, in the order in which they run, fitted to what the whole network's layer gives.

The cut network runs once, on all images at a time. When a layer is about to run, everything before it is repaired, and
its input is what it will be. First the whole network's input channels are predicted from the ones at hand, place by
place: few numbers, so few images will do. Then the weight is fitted to the whole layer's outputs on patches, with a
ridge that pulls towards the first step's weight.

Where something is added to what a layer gives, as in residual blocks, the sum counts: the layer is fitted to what makes
up for the other part, too, which has changed by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import Batch, call, together
from lcprune.repairs.layers import groups_of, patches, rows, some_places, write
from lcprune.repairs.moments import doubt
from lcprune.repairs.stand_ins import can_shift, left_rows, ridge, shift
from lcprune.repairs.wiring import Site, Wiring

_PLACES = 32  # of a feature map, at most
_CHANNEL_RIDGE, _CHANNEL_NOISE = 1e-3, 0.2  # of the mean square: always, and times the doubt
_PATCH_RIDGE, _PATCH_NOISE = 0.03, 0.5
_PATCHES = 2**26  # numbers in the patches of one layer, at most
_ABLE = 0.01  # of the largest factor of a batch norm: outputs with a smaller one make up for nothing
_WIDEST = 8192  # inputs times taps of a patch: more are not fitted by patch

Seen = dict[str, tuple[Tensor, Tensor]]


@contextlib.contextmanager
def recording(whole: nn.Module, wiring: Wiring, batches: Sequence[Batch], numbers: int) -> Iterator[Seen]:
    """While the network runs on these batches: what layers read and give, at some places: site -> inputs, outputs.

    Args:
        whole: in evaluation mode.
        wiring: of the network.
        batches: images; what runs after them is not looked at.
        numbers: to be kept, at most; fewer places are looked at where that is less.
    """
    sites = [site for site in wiring.sites if site.patched]
    images = sum(batch.size for batch in batches)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {site.name: [] for site in sites}
    found: Seen = {}

    def hook(site: Site) -> Any:
        name = site.name

        def note(layer: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
            if len(parts[name]) < len(batches):
                wide = layer.weight[0].numel() * groups_of(layer)
                read, given = some(layer, args[0], wide), some(layer, output, wide)
                if name in beside:
                    given += some(layer, beside.pop(name), wide) * _per_output(whole, site)[:, None]
                parts[name].append((read, given))

        return note

    def some(layer: Any, tensor: Tensor, wide: int) -> Tensor:
        values = rows(layer, tensor)
        share = min(numbers // (2 * len(sites) * values.shape[1]), _PATCHES // wide) // images
        return values[:, :, some_places(values.shape[2], max(1, min(_PLACES, share)), values.device)].float()

    handles = [whole.get_submodule(site.name).register_forward_hook(hook(site)) for site in sites]
    try:
        with _listening(whole, sites) as beside:
            yield found
    finally:
        for handle in handles:
            handle.remove()
    for name, pairs in parts.items():
        if pairs:
            inputs, outputs = zip(*pairs, strict=True)
            found[name] = torch.cat(inputs), torch.cat(outputs)


@torch.no_grad()
def refit(
    whole: nn.Module,
    small: nn.Module,
    wiring: Wiring,
    seen: Seen,
    batches: Sequence[Batch],
    renewing: contextlib.AbstractContextManager[None],
) -> None:
    """Fit every layer of the cut network, in place.

    Args:
        whole: the network before the cut.
        small: the network as cut.
        wiring: of the two.
        seen: what `recording` saw of the very same images.
        batches: the images.
        renewing: entered while the cut network runs: gives batch norms new statistics, or does nothing.
    """

    def layer_hook(site: Site) -> Any:
        def fit(cut: Any, args: tuple[Tensor, ...]) -> None:
            layer, (before, wanted) = whole.get_submodule(site.name), seen[site.name]
            if site.name in beside:
                other = _some(cut, beside.pop(site.name), wanted)
                outputs = site.columns.outputs.to(other.device)
                wanted = wanted.index_copy(
                    1, outputs, wanted[:, outputs] - other * _per_output(whole, site)[outputs][:, None]
                )
            _fit(layer, cut, small, site, args[0], before, wanted)

        return fit

    sites = [site for site in wiring.sites if site.patched]
    handles = [small.get_submodule(site.name).register_forward_pre_hook(layer_hook(site)) for site in sites]
    try:
        with renewing, _listening(small, sites) as beside:
            call(small, together(batches).inputs)
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _listening(model: nn.Module, sites: Sequence[Site]) -> Iterator[dict[str, Tensor]]:
    """While a network runs: what is added to the outputs of a layer, by its name, as soon as it is known."""
    found: dict[str, Tensor] = {}

    def hook(name: str, read: bool) -> Any:
        def note(module: nn.Module, args: tuple[Tensor, ...], output: Any = None) -> None:
            found[name] = args[0] if read else output

        return note

    handles = []
    for site in sites:
        if site.beside is not None:
            module, read = model.get_submodule(site.beside[0]), site.beside[1]
            listen = module.register_forward_pre_hook if read else module.register_forward_hook
            handles.append(listen(hook(site.name, read)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _per_output(whole: nn.Module, site: Site) -> Tensor:
    """How far an output of a layer has to move so that the sum behind it moves by one; 0 where it hardly can."""
    layer: Any = whole.get_submodule(site.name)
    if site.norm is None:
        return torch.ones(len(layer.weight), device=layer.weight.device)
    norm: Any = whole.get_submodule(site.norm)
    factor = (norm.running_var + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight)
    able = factor.abs() > _ABLE * factor.abs().max()
    return torch.where(able, 1 / torch.where(able, factor, 1.0), 0.0).float()


def _fit(layer: Any, cut: Any, small: nn.Module, site: Site, given: Tensor, before: Tensor, wanted: Tensor) -> None:
    """Fit one layer.

    Args:
        layer: in the whole network.
        cut: in the cut one.
        small: the cut network.
        site: where they are.
        given: what the cut layer is about to read.
        before: what the whole layer read at some places.
        wanted: what it gave, likewise.
    """
    groups = len(site.columns.source)
    now = _some(cut, given, before)
    outputs = site.columns.outputs.to(given.device)
    if _alike(now, before):  # nothing before it has changed
        gives = None if site.beside is None else _some(cut, type(cut).forward(cut, given), wanted)
        if gives is None or _alike(gives, wanted[:, outputs]):
            return
    centred = can_shift(small, site)
    weight = left_rows(layer, site)
    reads = weight.shape[2]
    source = site.columns.source.to(given.device)
    a = before.transpose(0, 1).flatten(1).unflatten(0, (-1, reads))[source]  # (groups, reads, rows)
    b = now.transpose(0, 1).flatten(1).unflatten(0, (groups, -1))  # (groups, kept, rows)
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
    target = wanted[:, outputs].transpose(1, 2).flatten(0, 1).unflatten(1, (groups, -1)).transpose(0, 1)
    patch = patches(cut, given, wanted.shape[2]).float().unflatten(1, (groups, -1)).transpose(0, 1).flatten(2)
    squares = patch.square().mean((1, 2)).double()
    if centred:
        patch, patch_mean = _centre(patch, 1)
        target, target_mean = _centre(target, 1)
    flat = start.flatten(2)
    if flat.shape[2] <= _WIDEST:
        gram = (patch.mT @ patch).double() / patch.shape[1]
        error = (patch.mT @ (target - patch @ flat.float().mT)).double() / patch.shape[1]
        share = _PATCH_RIDGE + _PATCH_NOISE * doubt(gram.shape[1], len(given))
        flat = flat + torch.linalg.solve(gram + ridge(gram, share, squares), error).mT
    if not bool(flat.isfinite().all()):
        return
    write(cut, flat.reshape(start.shape))
    if centred:
        offset = (target_mean.double() - patch_mean.double() @ flat.mT).flatten()
        shift(small, site, offset if cut.bias is None else offset - cut.bias.double())


def _some(layer: Any, tensor: Tensor, like: Tensor) -> Tensor:
    """What a layer reads or gives, at the places of another."""
    values = rows(layer, tensor)
    return values[:, :, some_places(values.shape[2], like.shape[2], values.device)].float()


def _alike(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def _centre(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    mean = values.mean(dim, keepdim=True)
    return values - mean, mean
