"""A search with a guide: what it begins with meets the limits, and it finds what a loss asks for sooner than others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from lcprune.cost import Axis, Cost, Term
from lcprune.search import LossGuide, Search, Space, make_sampler
from lcprune.search.samplers import GuidedEvolution
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


def counts_of(guide: LossGuide, beta: np.ndarray) -> np.ndarray:
    """How many units each group keeps."""
    return (guide.shares([beta])[0] * guide.ranking.sizes).round().astype(int)


def lost(guide: LossGuide, beta: np.ndarray, weights: np.ndarray | float = 1.0) -> float:
    """The weighted sum of what groups lose."""
    shares = [curve[count] for curve, count in zip(guide.curves, counts_of(guide, beta), strict=True)]
    return float(np.sum(weights * np.array(shares)))


def weighing(guide: LossGuide, seed: int = 1) -> Callable[[np.ndarray], float]:
    """A loss that the guide does not know: what groups lose counts very differently."""
    weights = 10.0 ** np.random.default_rng(seed).uniform(-1.5, 1.5, len(guide.curves))
    return lambda beta: lost(guide, beta, weights)


def searched(guide: LossGuide, loss: Callable[[np.ndarray], float], algorithm: str, total: int = 60, together: int = 1):
    search = Search(
        pool=20, iterations=total - 20, algorithm=algorithm, form="affine" if guide.space.affine else "shift"
    )
    sampler = make_sampler(guide.space, search, 0, guide=guide)
    asked = []
    while sampler.asked < total:
        betas = [sampler.ask() for _ in range(min(sampler.room, total - sampler.asked, together))]
        asked += betas
        for beta in betas:
            sampler.tell(beta, loss(beta))
    return sampler, asked


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_better_ones_than_plain_evolution(seed: int, together: int) -> None:
    guide = made(groups=30, seed=seed)
    loss = weighing(guide, seed)
    found, _ = searched(guide, loss, "guided", 100, together)
    plain, _ = searched(guide, loss, "evolution", 100)
    assert found.best_loss < 0.9 * plain.best_loss


@pytest.mark.parametrize("form", ["shift", "affine"])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_what_it_begins_with(form: str, multiple_of: int) -> None:
    """The lightest cut loses least in sum, of the level one no group loses much more than another; all meet limits."""
    guide = made(form=form, multiple_of=multiple_of)
    uniform, level, lightest = guide.starts()
    for beta in (uniform, level, lightest):
        assert all(bound.holds(counts_of(guide, beta)) for bound in guide.bounds)
    assert lost(guide, lightest) < min(lost(guide, uniform), lost(guide, level))
    shares = [curve[count] for curve, count in zip(guide.curves, counts_of(guide, level), strict=True)]
    assert multiple_of > 1 or max(shares) - min(shares) < 0.1


def test_no_widths_are_judged_twice_while_there_are_others() -> None:
    guide = made()
    _, asked = searched(guide, weighing(guide), "guided", together=3)
    assert len({tuple(counts_of(guide, beta)) for beta in asked}) == len(asked)


@pytest.mark.parametrize("value", [0.0, -1.0, 1.0, math.inf, math.nan])
def test_losses_that_tell_nothing_do_no_harm(value: float) -> None:
    _, asked = searched(made(), lambda beta: value, "guided")
    assert len(asked) == 60
    assert all(np.isfinite(beta).all() for beta in asked)


@pytest.mark.parametrize("worst", [math.inf, 1e30])
def test_some_candidates_may_be_hopeless(worst: float) -> None:
    """Losses may be negative, too, as differences of losses are."""
    guide = made()
    loss = weighing(guide)
    sampler, _ = searched(guide, lambda beta: loss(beta) - 30 if guide.shares([beta])[0][0] > 0.5 else worst, "guided")
    plain, _ = searched(guide, lambda beta: loss(beta) - 30 if guide.shares([beta])[0][0] > 0.5 else worst, "evolution")
    assert sampler.best_loss < plain.best_loss


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
