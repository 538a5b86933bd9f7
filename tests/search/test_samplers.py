"""One suite for every sampler: whoever proposes candidates must pass all of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lcprune.errors import SearchError
from lcprune.search import RegularizedEvolution, Search, Space, make_sampler
from lcprune.search.config import ALGORITHMS, FORMS

GROUPS = 12


def space(form: str = "shift", groups: int = GROUPS) -> Space:
    rng = np.random.default_rng(7)
    return Space.of([rng.gamma(2.0, 1.0 + index, size=8) for index in range(groups)], form)


def distance(beta: np.ndarray) -> float:
    """A smooth objective whose optimum is away from zero."""
    shift = beta[1] if beta.ndim == 2 else beta
    scale = np.log(beta[0]) if beta.ndim == 2 else np.zeros(len(beta))
    return float(np.sum((shift / space().deviations - 0.5) ** 2) + np.sum((scale - 0.3) ** 2))


def run(algorithm: str, form: str = "shift", seed: int = 0, objective=distance, **settings):
    search = Search(**{"pool": 16, "iterations": 84, "algorithm": algorithm, "form": form, **settings})
    sampler = make_sampler(space(form), search, seed)
    asked = []
    for _ in range(search.total):
        beta = sampler.ask()
        asked.append(beta.copy())
        sampler.tell(beta, objective(beta))
    return sampler, asked


@pytest.fixture(params=[(a, f) for a in ALGORITHMS for f in FORMS], ids=lambda pair: "-".join(pair))
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def test_candidates_differ(kind) -> None:
    _, asked = run(*kind)
    assert len({beta.tobytes() for beta in asked}) == len(asked)


def test_every_group_is_reached(kind) -> None:
    _, asked = run(*kind)
    naive = space(kind[1]).naive
    assert np.all(np.any(np.stack(asked) != naive, axis=0))


def test_mutations_reach_every_group() -> None:
    # The first pool moves every group; here only mutations do, since it consists of beta = 0 alone.
    _, asked = run("evolution", pool=1, iterations=200)
    assert np.all(np.any(np.diff(np.stack(asked), axis=0) != 0, axis=0))


def test_same_seed_same_run_other_seed_other_run(kind) -> None:
    _, one = run(*kind, seed=3)
    _, same = run(*kind, seed=3)
    _, other = run(*kind, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))


def test_global_random_state_is_neither_used_nor_changed(kind) -> None:
    np.random.seed(0)  # noqa: NPY002
    _, one = run(*kind)
    after = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    _, two = run(*kind)
    np.random.seed(0)  # noqa: NPY002
    assert after == np.random.random()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_naive_comes_first_and_the_best_is_never_worse(kind) -> None:
    sampler, asked = run(*kind)
    assert np.array_equal(asked[0], space(kind[1]).naive)
    assert sampler.best_loss == min(map(distance, asked)) <= distance(asked[0])
    # Even where naive pruning is the optimum and every other candidate is worse.
    sampler, asked = run(*kind, objective=lambda beta: float(not np.array_equal(beta, space(kind[1]).naive)))
    assert np.array_equal(sampler.best, asked[0])


@pytest.mark.parametrize("form", FORMS)
def test_learns(form) -> None:
    sampler, asked = run("evolution", form, iterations=384)
    assert sampler.best_loss < 0.6 * distance(asked[0])


def test_losses_that_are_not_finite_count_as_infinite(kind) -> None:
    values = iter([0.5, math.nan, math.inf, -math.inf] * 100)
    sampler, _ = run(*kind, objective=lambda beta: next(values))
    assert sampler.best_loss == 0.5


def test_scales_stay_positive() -> None:
    for algorithm in ALGORITHMS:
        _, asked = run(algorithm, "affine")
        assert all(np.all(beta[0] > 0) for beta in asked)


@pytest.mark.parametrize(("groups", "share", "expected"), [(12, 0.1, 1), (3, 0.1, 1), (20, 0.25, 5), (4, 1.0, 4)])
def test_mutation_changes_the_asked_share_of_groups_and_at_least_one(groups, share, expected) -> None:
    search = Search(pool=1, iterations=50, mutate=share)
    sampler = make_sampler(space(groups=groups), search, 0)
    parent = sampler.ask()
    sampler.tell(parent, 0.0)
    for _ in range(20):
        child = sampler.ask()
        assert np.sum(child != parent) == expected
        sampler.tell(child, 1.0)
        parent = child  # a pool of one: the child has replaced it


def test_the_step_falls_linearly_from_one_to_zero() -> None:
    search = Search(pool=2, iterations=1000, mutate=1.0)
    sampler = make_sampler(Space(np.ones(400)), search, 0)
    sizes = []
    for index in range(search.total):
        beta = sampler.ask()
        if index >= search.pool:
            parent = min(sampler.members, key=lambda member: np.std(beta - member[0]))[0]
            sizes.append(float(np.std(beta - parent)))
        # All equal: the parent is any member of the pool.
        sampler.tell(beta, 0.0)
    expected = 1 - np.arange(1000) / 1000
    assert np.allclose(sizes, expected, rtol=0.25, atol=0.0)
    assert sizes[-1] < 0.01


def test_the_oldest_member_dies_however_fit() -> None:
    search = Search(pool=4, iterations=20)
    sampler = make_sampler(space(), search, 0)
    assert isinstance(sampler, RegularizedEvolution)
    told = []
    for index in range(search.total):
        beta = sampler.ask()
        sampler.tell(beta, float(index))  # the oldest is the fittest
        told.append(beta)
        assert [id(member[0]) for member in sampler.members] == [id(beta) for beta in told[-4:]]
    assert sampler.best is told[0]


def test_the_parent_is_the_fittest_of_a_sample() -> None:
    search = Search(pool=8, iterations=200, sample=200)  # so large that the fittest is always in it
    sampler = make_sampler(space(), search, 0)
    for _ in range(search.total):
        fittest = min(sampler.members, key=lambda member: member[1])[0] if sampler.members else None
        beta = sampler.ask()
        if sampler.asked > search.pool:
            assert np.sum(beta != fittest) == 1
        sampler.tell(beta, distance(beta))


def test_the_first_pool_has_the_deviation_of_each_group() -> None:
    search = Search(pool=4000, iterations=0)
    where = space()
    sampler = make_sampler(where, search, 0)
    drawn = np.stack([sampler.ask() for _ in range(search.pool)][1:])
    assert np.allclose(drawn.std(0), where.deviations, rtol=0.1)
    assert np.allclose(drawn.mean(0) / where.deviations, 0, atol=0.1)


def test_a_group_without_deviation_moves_too() -> None:
    where = Space.of([np.ones(4), np.array([1.0, 2.0, 4.0]), np.array([5.0])])
    assert np.all(where.deviations > 0)
    assert np.all(Space.of([np.ones(4), np.ones(2)]).deviations > 0)


def test_mutating_before_anything_was_told_is_an_error() -> None:
    sampler = make_sampler(space(), Search(pool=1, iterations=2), 0)
    sampler.ask()
    with pytest.raises(SearchError, match="before any candidate was told"):
        sampler.ask()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool": 0}, "pool=0"),
        ({"iterations": -1}, "iterations=-1"),
        ({"mutate": 0.0}, "mutate=0.0"),
        ({"mutate": 1.5}, "mutate=1.5"),
        ({"algorithm": "annealing"}, "'evolution', 'guided', 'random'"),
        ({"form": "cubic"}, "'shift', 'affine'"),
        ({"patience": 0}, "patience=0"),
        ({"together": 2.5}, "together=2.5"),
    ],
)
def test_wrong_settings_are_refused_with_their_value(settings, message) -> None:
    with pytest.raises(SearchError, match=message):
        Search(**settings)
