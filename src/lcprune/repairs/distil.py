"""A short distillation without labels: the cut network learns what every layer of the whole one gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from lcprune.repairs.wiring import Site, Wiring

STEPS, _LR, _BATCH = 300, 2e-4, 128
_EVERY = 3  # of the layers, one in so many is listened to: neighbours say nearly the same
_SMALLEST = 0.4  # share of an image's area that a random crop shows, at least


def distil(whole: nn.Module, small: nn.Module, wiring: Wiring, batch: Batch, seed: int, progress: bool) -> None:
    """Train the cut network, in place, to give what the whole one gives, at its end and at layers in between.

    The whole network answers for any input, so random crops of the images and their mirror images serve, too. Batch
    norms keep their statistics, as when the network is used.

    Args:
        whole: the network before the cut, in evaluation mode.
        small: the cut network, best repaired already.
        wiring: of the two.
        batch: all images.
        seed: of their order.
        progress: show a bar.
    """
    trained = [p for p in small.parameters() if p.is_floating_point()]
    wanted = [parameter.requires_grad for parameter in trained]
    optimizer = torch.optim.Adam([parameter.requires_grad_(True) for parameter in trained], lr=_LR)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LR, total_steps=STEPS, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    sites = [site for site in wiring.sites if site.patched][_EVERY - 1 :: _EVERY]
    small.eval()
    try:
        with _Ears(whole, sites) as ours, _Ears(small, sites) as theirs, Progress("distil", STEPS, progress) as bar:
            for _ in range(STEPS):
                index = torch.randint(batch.size, (min(_BATCH, batch.size),), generator=generator)
                inputs = pytree.tree_map(lambda leaf, index=index: leaf[index.to(leaf.device)], batch.inputs)
                inputs = vary(inputs, generator)
                with torch.no_grad():
                    target = _floats(call(whole, inputs))
                with torch.enable_grad():
                    output = _floats(call(small, inputs))
                    inner = [relative(_stays(whole, site, ours.heard), theirs.heard[site.name]) for site in sites]
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


def vary(inputs: Any, generator: torch.Generator) -> Any:
    """Random crops of images (four dimensions), stretched to their size, half of them mirrored; the rest as it is.

    Args:
        inputs: of a batch; all its images are cropped alike.
        generator: on the CPU.
    """
    images = [leaf for leaf in pytree.tree_leaves(inputs) if _is_images(leaf)]
    if not images:
        return inputs
    count = len(images[0])
    side = (_SMALLEST + (1 - _SMALLEST) * torch.rand(count, generator=generator)).sqrt()
    right, down = (1 - side) * (2 * torch.rand(2, count, generator=generator) - 1)
    mirror = 2.0 * torch.randint(2, (count,), generator=generator) - 1
    zero = torch.zeros(count)
    places = torch.stack([side * mirror, zero, right, zero, side, down], 1).view(count, 2, 3)

    def crop(leaf: Tensor) -> Tensor:
        if not _is_images(leaf) or len(leaf) != count:
            return leaf
        grid = functional.affine_grid(places.to(leaf), list(leaf.shape), align_corners=False)
        return functional.grid_sample(leaf, grid, padding_mode="reflection", align_corners=False)

    return pytree.tree_map(crop, inputs)


def _is_images(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim == 4 and leaf.is_floating_point()


def _backward(loss: Tensor) -> None:
    try:
        loss.backward()
    except RuntimeError as error:
        raise TuneError(f"the network cannot be trained ({first_line(error)}): choose repair='refit'") from error


def _floats(output: Any) -> list[Tensor]:
    return [tensor for tensor in tensors(leaves(output)) if tensor.is_floating_point()]


def _stays(whole: nn.Module, site: Site, heard: Mapping[str, Tensor]) -> Tensor:
    """Of what a layer gives, the channels that stay."""
    values, linear = heard[site.name], isinstance(whole.get_submodule(site.name), nn.Linear)
    return values.index_select(values.ndim - 1 if linear else 1, site.columns.outputs.to(values.device))


class _Ears:
    """Keeps what layers, or the batch norms that alone read them, give in the last pass."""

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self.heard: dict[str, Tensor] = {}
        self._model, self._sites = model, sites

    def __enter__(self) -> _Ears:
        self._handles = [
            self._model.get_submodule(site.norm or site.name).register_forward_hook(self._hook(site.name))
            for site in self._sites
        ]
        return self

    def __exit__(self, *args: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, args: Any, output: Tensor) -> None:
            self.heard[name] = output

        return note
