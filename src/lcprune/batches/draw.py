"""Drawing the search's images: once, with the run's seed, from any iterable of (input, target) or input batches."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from lcprune.errors import DataError

logger = logging.getLogger("lcprune")

_BATCH = "a data set of single images becomes batches with torch.utils.data.DataLoader(dataset, batch_size=64)"


@dataclass(frozen=True, eq=False)
class Batch:
    """`size` images and their targets, on the device they are judged on.

    `inputs` are a tensor, or a tuple or dict of tensors that the network is called with. `target` is whatever the loss
    takes as its second argument; () where there are inputs alone.
    """

    inputs: Any
    target: Any
    size: int

    def __iter__(self) -> Any:
        """`inputs, target = batch`, like the batches that a user gave."""
        return iter((self.inputs, self.target))

    def at(self, index: Any) -> tuple[Any, Any]:
        """Inputs and target of some of the images, or of one."""
        found: tuple[Any, Any] = pytree.tree_map(lambda leaf: leaf[index], tuple(self))
        return found

    def channels_last(self) -> Batch:
        """The same images in the memory layout that many kernels prefer."""

        def lay_out(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf

        return Batch(pytree.tree_map(lay_out, self.inputs), self.target, self.size)

    def bfloat16(self) -> Batch:
        """The same images in half precision; targets stay."""

        def cast(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.to(torch.bfloat16) if leaf.is_floating_point() else leaf

        return Batch(pytree.tree_map(cast, self.inputs), self.target, self.size)


def draw(data: Iterable[Any], images: int, seed: int) -> list[tuple[Any, Any]]:
    """Draw images without replacement, each with the same chance, keeping the order of the data.

    A plain `DataLoader` over an indexable data set is asked for the drawn images alone; anything else is read
    once, from beginning to end, keeping a reservoir.

    Args:
        data: iterable of (input, target) batches, or of inputs alone: a tensor or a dict of them.
        images: how many; all there are if the data holds fewer.
        seed: of the draw.

    Returns:
        (input, target) pairs of single images; the target of inputs alone is ().
    """
    try:
        iter(data)
    except TypeError:
        raise DataError(
            f"data must be an iterable of (input, target) or input batches, not {type(data).__name__}"
        ) from None
    rng = np.random.default_rng(seed)
    if _indexable(data):
        chosen = np.sort(rng.permutation(len(data.dataset))[:images]).tolist()  # type: ignore[arg-type]
        how: dict[str, Any] = {key: getattr(data, key) for key in ("batch_size", "num_workers", "collate_fn")}
        batches = map(as_batch, DataLoader(Subset(data.dataset, chosen), **how))
        samples = [batch.at(index) for batch in batches for index in range(batch.size)]
    else:
        samples = _reservoir(data, images, rng)
    if not samples:
        raise DataError("the data holds no images; if it is a generator, it may have been used up: pass a list")
    if len(samples) < images:
        logger.info("judging candidates on %d images: the data holds no more (%d asked)", len(samples), images)
    return samples


def alone(samples: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Samples without their targets, which need not fit together where nobody looks at them."""
    return [(inputs, ()) for inputs, _ in samples]


def collate(samples: Sequence[tuple[Any, Any]], batch_size: int, device: torch.device | str = "cpu") -> list[Batch]:
    """Stack samples, of tensors, arrays or numbers, into batches on a device; the last one may be smaller."""
    batches = []
    for start in range(0, len(samples), batch_size):
        chunk = samples[start : start + batch_size]
        stacked = pytree.tree_map(lambda *leaves: _stack(leaves).to(device), *chunk)
        batches.append(Batch(stacked[0], stacked[1], len(chunk)))
    return batches


def _stack(leaves: Sequence[Any]) -> torch.Tensor:
    tensors = [*map(torch.as_tensor, leaves)]
    if len(sizes := dict.fromkeys(tuple(tensor.shape) for tensor in tensors)) > 1:
        one, other, *_ = sizes
        raise DataError(
            f"inputs or targets of {list(one)} and of {list(other)} make no batch: bring all to one size, by resizing, "
            "cropping or padding"
        )
    return torch.stack(tensors)


def together(batches: Sequence[Batch]) -> Batch:
    """All images as one batch, without their targets."""
    inputs = pytree.tree_map(lambda *leaves: torch.cat(leaves), *(batch.inputs for batch in batches))
    return Batch(inputs, (), sum(batch.size for batch in batches))


def fingerprint(samples: Sequence[tuple[Any, Any]]) -> str:
    """A short hash of drawn images, by which a resumed search knows that it judges the same ones."""
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        for leaf in pytree.tree_leaves(sample):
            digest.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _indexable(data: Any) -> TypeGuard[DataLoader[Any]]:
    if type(data) is not DataLoader or isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return False
    # Only where the loader's own sampler covers the whole set: another may hold out images for validation.
    sampler = data.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(data.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _reservoir(data: Iterable[Any], images: int, rng: np.random.Generator) -> list[tuple[Any, Any]]:
    kept: dict[int, tuple[int, tuple[Any, Any]]] = {}
    seen = 0
    for batch in map(as_batch, data):
        for index in range(batch.size):
            place = seen if seen < images else int(rng.integers(seen + 1))
            if place < images:
                # A row is a view of its batch: copied, so that the rest of the batch can be freed.
                kept[place] = seen, pytree.tree_map(torch.clone, batch.at(index))
            seen += 1
    return [sample for _, sample in sorted(kept.values(), key=lambda item: item[0])]


def as_batch(batch: Any) -> Batch:
    """What a user's data gives, as a batch: (input, target), or inputs alone; all must have one entry per image."""
    if isinstance(batch, (torch.Tensor, Mapping)):
        batch = batch, ()  # inputs alone
    if not isinstance(batch, (tuple, list, Batch)) or len(tuple(batch)) != 2:
        parts = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise DataError(
            f"data must give (input, target) batches or inputs alone, not a {type(batch).__name__}{parts}; several "
            "inputs go together: ((first, second), target)"
        )
    inputs, target = pytree.tree_map(
        _tensor, tuple(dict(part) if isinstance(part, Mapping) else part for part in batch)
    )
    leaves = pytree.tree_leaves((inputs, target))
    sizes = {leaf.shape[0] for leaf in leaves if leaf.ndim}
    if len(sizes) != 1 or any(leaf.ndim == 0 for leaf in leaves):
        raise DataError(
            "the inputs and targets of a batch must have the same first dimension, one entry per image (targets of "
            f"differing sizes, such as boxes, can be padded); {_BATCH}"
        )
    return Batch(inputs, target, sizes.pop())


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    if isinstance(leaf, np.ndarray):
        return torch.as_tensor(leaf)
    raise DataError(f"data must give batches of tensors, not {type(leaf).__name__}; {_BATCH}")
