"""A search with a guide: what it proposes meets the limits, and finds what an additive loss asks for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from lcprune.cost import Axis, Cost, Term
from lcprune.guide import LossGuide
from lcprune.search import Search, Space, make_sampler
from lcprune.search.guided import GuidedEvolution
from lcprune.select import Limits, Ranking


def made(groups: int = 7, macs: float = 0.5, form: str = "shift", seed: int = 0, multiple_of: int = 1) -> LossGuide:
    """A chain of layers whose scores have very different spreads."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(12, 60, groups).tolist()
    axes = [Axis(0, ((group, 1),)) for group in range(groups)]
    terms = [Term(int(rng.integers(1, 50)), pair) for pair in itertools.pairwise(axes)]
    terms += [Term(3, (axis,)) for axis in axes]
    cost = Cost([f"layer{group}" for group in range(groups)], sizes, terms, terms)
    scores = [rng.gamma(2.0, 10.0 ** rng.uniform(-2, 2), size) for size in sizes]
    # Falls fast or slowly as units are given back.
    curves = [(1 - np.arange(size + 1) / size) ** rng.uniform(1.2, 4) for size in sizes]
    ranking = Ranking(scores, cost, multiple_of=multiple_of)
    return LossGuide(ranking, Limits(macs=macs), Space.of(scores, form), scores, curves)


def weights_of(guide: LossGuide, seed: int = 1) -> np.ndarray:
    """What groups lose counts very differently."""
    return 10.0 ** np.random.default_rng(seed).uniform(-1.5, 1.5, len(guide.curves))


def weighing(guide: LossGuide, seed: int = 1) -> Callable[[np.ndarray], float]:
    """A loss with these weights."""
    weights = weights_of(guide, seed)
    return lambda beta: float(weights @ guide.lost(beta))


def searched(
    guide: LossGuide, loss: Callable[[np.ndarray], float], algorithm: str, total: int = 60, together: bool = False
):
    search = Search(
        pool=20, iterations=total - 20, algorithm=algorithm, form="affine" if guide.space.affine else "shift"
    )
    sampler = make_sampler(guide.space, search, 0, guide=guide)
    asked = []
    while sampler.asked < total:
        count = min(sampler.room, total - sampler.asked) if together and sampler.room < total else 1
        betas = [sampler.ask() for _ in range(count)]
        asked += betas
        for beta in betas:
            sampler.tell(beta, loss(beta))
    return sampler, asked


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_what_an_additive_loss_asks_for(seed: int) -> None:
    guide = made(seed=seed)
    loss = weighing(guide, seed)
    ideal = loss(guide.least(weights_of(guide, seed), guide.space.naive, 1.0))
    found, _ = searched(guide, loss, "guided")
    plain, _ = searched(guide, loss, "evolution")
    assert found.best_loss <= 1.1 * ideal
    assert found.best_loss < 0.95 * plain.best_loss


@pytest.mark.parametrize("form", ["shift", "affine"])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_neighbours_give_one_group_back_and_meet_the_limits(form: str, multiple_of: int) -> None:
    guide = made(form=form, multiple_of=multiple_of)
    base = guide.starts()[1]
    before = guide.lost(base)
    neighbours = guide.neighbours(base, 1.0)
    assert len(neighbours) == len(guide.curves)
    for group, beta in enumerate(neighbours):
        after = guide.lost(beta)
        assert after[group] < before[group]
        others = np.delete(after - before, group)
        assert multiple_of > 1 or others.min() >= 0
        # They pay alike: none alone, however the spreads of the scores differ.
        assert multiple_of > 1 or not others.any() or np.count_nonzero(others) >= len(others) - 2
        counts = guide.ranking.counts(guide.limits, *((beta[1], beta[0]) if form == "affine" else (beta,)))
        assert all(bound.holds(counts) for bound in guide.bounds)


def test_reach_bounds_how_far_widths_move() -> None:
    guide = made()
    base = guide.starts()[1]
    counts = guide.ranking.counts(guide.limits, base)
    weights = 10.0 ** np.linspace(-2, 2, len(counts))
    for reach in (0.1, 0.3):
        moved = guide.ranking.counts(guide.limits, guide.least(weights, base, reach))
        # The cut that follows may keep a unit or two more, until the limits hold exactly.
        assert np.all(np.abs(moved - counts) <= reach * guide.ranking.sizes + 2)
    far = guide.least(weights, base, 1.0)
    assert weights @ guide.lost(far) < weights @ guide.lost(guide.least(weights, base, 0.1))


def test_told_together_a_round_is_the_same() -> None:
    one, two = made(), made()
    _, alone = searched(one, weighing(one), "guided")
    _, together = searched(two, weighing(two), "guided", together=True)
    until = 1 + len(one.starts()) + len(one.curves) + 3  # what follows are mutations of what has been told
    assert all(np.array_equal(*pair) for pair in zip(alone[:until], together[:until], strict=True))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_losses_that_tell_nothing_do_no_harm(value: float) -> None:
    _, asked = searched(made(), lambda beta: value, "guided")
    assert len(asked) == 60
    assert all(np.isfinite(beta).all() for beta in asked)


@pytest.mark.parametrize(("groups", "macs"), [(1, 0.5), (2, 1.0), (5, 0.02)])
def test_little_to_choose_from(groups: int, macs: float) -> None:
    guide = made(groups=groups, macs=macs) if macs > 0.02 else made(groups=groups, macs=smallest(groups))
    sampler, asked = searched(guide, weighing(guide), "guided")
    assert isinstance(sampler, GuidedEvolution)
    assert len(asked) == 60


def smallest(groups: int) -> float:
    """The share of MACs that is left when every group is at its floor."""
    guide = made(groups=groups)
    cost = guide.ranking.cost
    return float(cost.macs(guide.ranking.floors) / cost.macs(guide.ranking.sizes)) * 1.0001
