"""Which sampler a search asks."""

from __future__ import annotations

from collections.abc import Sequence

from lcprune.search.config import Search
from lcprune.search.guided import Guide, GuidedEvolution
from lcprune.search.samplers import RandomSearch, RegularizedEvolution, Sampler
from lcprune.search.space import FloatArray, Space


def make_sampler(
    space: Space, search: Search, seed: int, start: Sequence[FloatArray] = (), guide: Guide | None = None
) -> Sampler:
    """The sampler that `search.algorithm` names; without a guide, "guided" is "evolution".

    Args:
        start: candidates to propose right after naive pruning; after the guide's own, where there is one.
    """
    if guide is not None and search.algorithm == "guided":
        return GuidedEvolution(space, search, seed, start, guide)
    kind = RandomSearch if search.algorithm == "random" else RegularizedEvolution
    return kind(space, search, seed, [*(guide.starts() if guide else ()), *start])
