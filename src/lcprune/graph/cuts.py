"""Kinds of cuts that are tried on a network, each of which shows another way in which code goes by its channels."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcprune.graph.channel_graph import Group
from lcprune.select import Kept


def _any(groups: Sequence[Group], seed: int) -> Kept:
    """Any number of any units of all groups; by their names, so that the same are cut again when others freeze.

    Groups of one size keep different numbers, as far as there are some: code that takes one's for the other's shows.
    Those that have to keep the same one with one seed differ with the next.
    """
    before = list(map(len, _any(groups, seed - 1))) if seed else [0] * len(groups)
    largest = max((group.size for group in groups), default=0)
    # Size, or size and the number before -> for every number, how many groups have it.
    taken: defaultdict[tuple[int, ...], NDArray[np.int64]] = defaultdict(lambda: np.zeros(largest + 1, np.int64))
    kept: Kept = [np.arange(group.size) for group in groups]
    for position in sorted(range(len(groups)), key=lambda position: _key(groups[position], seed)):
        size, random = groups[position].size, np.random.default_rng(_key(groups[position], seed))
        # One unit alone says little about order (see Structure.order), so two stay where there are three.
        counts = np.roll(np.arange(min(2, size - 1), size), random.integers(size))
        if len(counts) == 1 and before[position] < size:
            counts = np.array([*counts, size])  # there is no other number: one group of two stays whole, but not twice
        alone, both = taken[size,], taken[size, before[position]]
        count = int(counts[np.argmin(both[counts] * (len(groups) + 1) + alone[counts])])
        alone[count] += 1
        both[count] += 1
        kept[position] = np.sort(random.choice(size, count, replace=False))
    return kept


def _key(group: Group, seed: int) -> int:
    return zlib.crc32(f"{seed} {group.name}".encode())


def _without(groups: Sequence[Group], first: int, last: int) -> Kept:
    """All groups without some of their first or last units: what acts by position shows at the ends."""
    return [np.arange(first, g.size - last) for g in groups]


def _few(groups: Sequence[Group]) -> Kept:
    """About a tenth of every group: code that treats few channels in another way shows."""
    counts = [max(min(2, group.size - 1), math.ceil(group.size / 10)) for group in groups]
    return [
        np.sort(np.random.default_rng(_key(group, 2)).choice(group.size, count, replace=False))
        for group, count in zip(groups, counts, strict=True)
    ]


def _apart(groups: Sequence[Group], whole: int) -> Kept | None:
    """Few units of every other group that shares a layer's filters: code may split a layer by a share of it."""
    shared: dict[tuple[str, int], list[int]] = {}
    for position, group in enumerate(groups):
        for member in group.members:
            if member.role == "out":
                shared.setdefault((member.weight, member.dim), []).append(position)
    return few_of_some(groups, shared.values(), whole)


def few_of_some(groups: Sequence[Group], together: Iterable[Sequence[int]], whole: int) -> Kept | None:
    """Few units of every other group of those that are together; None if each is by itself."""
    cut = {group for own in together if len(own) > 1 for group in own[whole::2]}
    return [few if g in cut else np.arange(groups[g].size) for g, few in enumerate(_few(groups))] if cut else None


# In the order in which they are tried; None where there is nothing of the kind to cut.
CUTS: tuple[Callable[[Sequence[Group]], Kept | None], ...] = (
    lambda groups: _any(groups, seed=0),
    lambda groups: _apart(groups, whole=0),
    lambda groups: _apart(groups, whole=1),
    lambda groups: _without(groups, first=1, last=0),
    lambda groups: _without(groups, first=0, last=1),
    _few,
    lambda groups: _any(groups, seed=1),
)
