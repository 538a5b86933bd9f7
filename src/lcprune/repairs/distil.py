"""A short distillation without labels: the cut network learns what the whole one gives, at its end and in between."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from lcprune.batches import Batch, call
from lcprune.errors import TuneError, first_line
from lcprune.graph.outputs import leaves, tensors
from lcprune.progress import Progress
from lcprune.repairs.distance import relative
from lcprune.repairs.statistics import statistics_of
from lcprune.repairs.watch import listening
from lcprune.repairs.wiring import Wiring

STEPS = 400
RATES = (1e-3, 3e-4)  # of learning: which comes closer depends on the network

_BATCH = 128
_EVERY = 3  # of the layers, one in so many is listened to: none, if there are fewer
_AREA = 0.35  # least share of an image that a crop shows
_ASPECT = 0.25  # logarithm of how much wider or higher it may be


def distil(
    whole: nn.Module, small: nn.Module, wiring: Wiring, batch: Batch, rate: float, seed: int, progress: bool
) -> None:
    """Train the cut network, in place, to give what the whole one gives, at its end and at layers in between.

    Half of the images are shown in part, enlarged, and half mirrored: the whole network says what they are. Batch norms
    take the statistics of each batch and learn new ones. On a GPU networks run in bf16; weights and distances are
    float32. `rate` is Adam's highest, and `seed` that of the images' order.
    """
    trained = [parameter for parameter in small.parameters() if parameter.is_floating_point()]
    wanted = [parameter.requires_grad for parameter in trained]
    optimizer = torch.optim.Adam([parameter.requires_grad_(True) for parameter in trained], lr=rate)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=STEPS, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    # What layers, or the batch norms that alone read them, give.
    sites = {site.norm or site.name: site for site in [s for s in wiring.sites if s.patched][_EVERY - 1 :: _EVERY]}
    ours, theirs = dict[str, Tensor](), dict[str, Tensor]()

    def hear(heard: dict[str, Tensor], name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        heard[name] = output

    def comparable(name: str) -> bool:
        # Values may say what arrives at a layer, as boxes do, and they differ.
        return name in ours and name in theirs and 0 < len(ours[name]) == len(theirs[name])

    def apart(name: str) -> Tensor:
        site, values = sites[name], ours[name]
        dim = values.ndim - 1 if isinstance(whole.get_submodule(site.name), nn.Linear) else 1
        return relative(values.index_select(dim, site.columns.outputs.to(values.device)), theirs[name])

    device = next(whole.parameters()).device.type
    faster = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    for norm in statistics_of(small).values():
        norm.train(batch.size > 1)  # one image may have no variance at all
    try:
        with (
            listening(whole, sites, functools.partial(hear, ours)),
            listening(small, sites, functools.partial(hear, theirs)),
            Progress("distil", STEPS, progress) as bar,
        ):
            for _ in range(STEPS):
                index = torch.randint(batch.size, (min(_BATCH, batch.size),), generator=generator)
                inputs = pytree.tree_map(lambda leaf, index=index: leaf[index.to(leaf.device)], batch.inputs)
                inputs = vary(inputs, len(index), generator)
                ours.clear()
                theirs.clear()
                with torch.no_grad(), faster:
                    target = _floats(call(whole, inputs))
                with torch.enable_grad():
                    with faster:
                        output = _floats(call(small, inputs))
                    inner = [apart(name) for name in sites if comparable(name)]
                    ends = [relative(*pair) for pair in zip(target, output, strict=True)]
                    loss = torch.stack(ends).mean() + (torch.stack(inner).mean() if inner else 0.0)
                    optimizer.zero_grad(set_to_none=True)
                    _backward(loss)
                optimizer.step()
                falling.step()
                bar.advance(distance=f"{float(torch.stack(ends).detach().mean()):.4f}" if bar.enabled else "")
    finally:
        for parameter, kept in zip(trained, wanted, strict=True):
            parameter.requires_grad_(kept)
            parameter.grad = None
        small.eval()


def vary(inputs: Any, count: int, generator: torch.Generator) -> Any:
    """What looks like images: half of them as they are, half random crops, each mirrored half of the time."""
    part, area, aspect, mirror, right, down = torch.rand(6, count, generator=generator)
    side, slim = (_AREA + (1 - _AREA) * area).sqrt(), (_ASPECT * (2 * aspect - 1)).exp()
    wide, high = (torch.where(part < 0.5, 1.0, size.clamp(max=1)) for size in (side * slim, side / slim))
    where = torch.zeros(count, 2, 3)
    where[:, 0, 0], where[:, 0, 2] = wide * (mirror - 0.5).sign(), (2 * right - 1) * (1 - wide)
    where[:, 1, 1], where[:, 1, 2] = high, (2 * down - 1) * (1 - high)

    def crop(leaf: Tensor) -> Tensor:
        if leaf.ndim != 4 or not leaf.is_floating_point():
            return leaf
        grid = functional.affine_grid(where.to(leaf), list(leaf.shape), align_corners=False)
        shown = functional.grid_sample(leaf, grid, padding_mode="border", align_corners=False)
        return shown.contiguous(memory_format=torch.channels_last) if leaf.is_cuda else shown  # faster in bf16

    return pytree.tree_map(crop, inputs)


def _backward(loss: Tensor) -> None:
    try:
        loss.backward()
    except RuntimeError as error:
        raise TuneError(f"the network cannot be trained ({first_line(error)}): choose repair='refit'") from error


def _floats(output: Any) -> list[Tensor]:
    return [tensor for tensor in tensors(leaves(output)) if tensor.is_floating_point()]
