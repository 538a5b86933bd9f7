"""Selection against the plain loop that it replaces, and the laws that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lcprune.cost import Axis, Cost, Term
from lcprune.errors import BudgetError
from lcprune.select import Extra, Limits, Ranking


@dataclass
class Case:
    """A small network's numbers: layers that read one another, scores with ties, floors, widths, limits."""

    scores: list[np.ndarray]
    cost: Cost
    min_keep: float
    multiple_of: int
    beta: np.ndarray
    alpha: np.ndarray
    limits: Limits

    def ranking(self) -> Ranking:
        return Ranking(self.scores, self.cost, self.min_keep, self.multiple_of)

    def fits(self, counts: Sequence[int]) -> bool:
        return all(bound.cost(np.array(counts)) <= bound.value for bound in self.limits.bounds(self.cost))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(1, 24), min_size=groups, max_size=groups))
    # Few distinct scores make ties inside and between groups likely.
    values = st.integers(0, 6).map(float) if draw(st.booleans()) else st.floats(0, 10, width=32)
    scores = [np.array(draw(st.lists(values, min_size=n, max_size=n))) for n in sizes]
    axes = [Axis(draw(st.integers(0, 3)), ((g, draw(st.integers(1, 3))),)) for g in range(groups)]
    pairs = draw(st.lists(st.tuples(*[st.integers(0, groups - 1)] * 2), min_size=1, max_size=8))
    terms = [Term(draw(st.integers(1, 50)), (axes[a], axes[b])) for a, b in pairs]
    terms += [Term(draw(st.integers(0, 20)), (axis,)) for axis in axes]
    other = [Term(1, (axis,)) for axis in axes]
    cost = Cost([f"layer{g}" for g in range(groups)], sizes, terms, other)
    numbers = st.lists(st.floats(-5, 5, width=32), min_size=groups, max_size=groups)
    latency = Extra(lambda counts: float(np.sqrt(np.asarray(counts, dtype=float)).sum()), draw(st.floats(0.3, 1)))
    return Case(
        scores,
        cost,
        draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])),
        draw(st.sampled_from([1, 1, 1, 2, 4, 8])),
        np.array(draw(numbers)) if draw(st.booleans()) else np.zeros(groups),
        np.exp(np.array(draw(numbers)) / 4) if draw(st.booleans()) else np.ones(groups),
        Limits(
            macs=draw(st.floats(0.02, 1)),
            params=draw(st.none() | st.floats(0.1, 1)),
            extra={"latency": latency} if draw(st.booleans()) else {},
        ),
    )


def allowed(size: int, min_keep: float, multiple_of: int) -> list[int]:
    floor = max(1, math.ceil(min_keep * size - 1e-9))
    return sorted({size, *(w for w in range(floor, size) if w % multiple_of == 0)})


def plain_loop(case: Case) -> list[set[int]] | None:
    """One unit at a time from the bottom of the sorted list; None if the limits are never met."""
    widths = [allowed(len(s), case.min_keep, case.multiple_of) for s in case.scores]
    kept = [sorted(range(len(s)), key=lambda u, s=s: (s[u], u)) for s in case.scores]
    sized = [len(s) for s in case.scores]
    order = sorted(
        (float(case.alpha[g]) * float(scores[unit]) + float(case.beta[g]), g, rank)
        for g, scores in enumerate(case.scores)
        for rank, unit in enumerate(kept[g])
    )
    turns = [0] * len(sized)
    while not case.fits(sized):
        if not order:
            return None
        _, g, _ = order.pop(0)
        turns[g] += 1
        # With multiple_of, a width is the loop's count rounded up to one that is allowed.
        sized[g] = min(w for w in widths[g] if w >= len(case.scores[g]) - turns[g])
    return [set(units[len(units) - n :]) for units, n in zip(kept, sized, strict=True)]


@settings(max_examples=400, deadline=None)
@given(cases())
def test_selection_equals_the_plain_loop(case: Case) -> None:
    expected = plain_loop(case)
    try:
        found = case.ranking().select(case.limits, case.beta, case.alpha)
    except BudgetError:
        assert expected is None
        return
    assert expected is not None
    assert [set(units.tolist()) for units in found] == expected
    assert all((np.diff(units) > 0).all() for units in found)


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 4), st.integers(0, 2**32))
def test_several_candidates_at_once_are_counted_as_one_by_one(case: Case, number: int, seed: int) -> None:
    ranking, rng = case.ranking(), np.random.default_rng(seed)
    beta = case.beta + rng.integers(-2, 3, (number, len(case.scores)))
    alpha = case.alpha * np.exp(rng.normal(size=beta.shape))
    try:
        together = ranking.counts(case.limits, beta, alpha)
    except BudgetError:
        return
    assert together.shape == beta.shape
    for counts, shift, factor in zip(together, beta, alpha, strict=True):
        assert counts.tolist() == ranking.counts(case.limits, shift, factor).tolist()


@settings(max_examples=200, deadline=None)
@given(cases())
def test_selection_holds_every_limit_floor_and_width(case: Case) -> None:
    ranking = case.ranking()
    for choose in (
        lambda: ranking.select(case.limits, case.beta, case.alpha),
        lambda: ranking.uniform(case.limits),
    ):
        try:
            counts = [len(units) for units in choose()]
        except BudgetError:
            continue
        assert case.fits(counts)
        for n, size in zip(counts, case.cost.sizes.tolist(), strict=True):
            assert n in allowed(size, case.min_keep, case.multiple_of)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_putting_back_the_last_step_breaks_a_limit(case: Case) -> None:
    ranking = case.ranking()
    try:
        counts = ranking.counts(case.limits, case.beta, case.alpha)
    except BudgetError:
        return
    if (counts == case.cost.sizes).all():
        return
    last = []
    for g, scores in enumerate(case.scores):
        removed = len(scores) - int(counts[g])
        if removed:
            value = case.alpha[g] * np.sort(scores)[removed - 1] + case.beta[g]
            last.append((float(value), g))
    g = max(last)[1]
    widths = allowed(len(case.scores[g]), case.min_keep, case.multiple_of)
    fuller = counts.copy()
    fuller[g] = widths[widths.index(int(counts[g])) + 1]
    assert not case.fits(fuller)


@settings(max_examples=150, deadline=None)
@given(cases(), st.floats(0.3, 1))
def test_a_tighter_limit_never_keeps_more(case: Case, factor: float) -> None:
    ranking = case.ranking()
    loose, tight = Limits(macs=0.9), Limits(macs=0.9 * factor)
    for choose in (lambda limits: ranking.select(limits, case.beta), ranking.uniform):
        try:
            wide, narrow = choose(loose), choose(tight)
        except BudgetError:
            continue
        assert all(set(n.tolist()) <= set(w.tolist()) for n, w in zip(narrow, wide, strict=True))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_uniform_keeps_one_fraction_everywhere(case: Case) -> None:
    ranking = Ranking(case.scores, case.cost, case.min_keep)
    try:
        kept = ranking.uniform(case.limits)
    except BudgetError:
        return
    counts, sizes = np.array([len(units) for units in kept]), case.cost.sizes
    # Fractions that round to a width n: [(n - 1/2) / size, (n + 1/2) / size]; at the floor, all below too.
    low = np.where(counts == ranking.floors, 0, (counts - 0.5) / sizes)
    high = np.where(counts == sizes, np.inf, (counts + 0.5) / sizes)
    assert low.max() <= high.min() + 1e-12
    for scores, units in zip(case.scores, kept, strict=True):
        gone = np.setdiff1d(np.arange(len(scores)), units)
        assert not len(gone) or scores[gone].max() <= scores[units].min()


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(-8, 8))
def test_the_same_beta_for_every_group_changes_nothing(case: Case, shift: int) -> None:
    ranking = Ranking([np.round(s) for s in case.scores], case.cost, case.min_keep)
    try:
        naive = ranking.counts(case.limits)
    except BudgetError:
        return
    shifted = ranking.counts(case.limits, beta=np.full(len(naive), float(shift)))
    np.testing.assert_array_equal(naive, shifted)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_high_beta_protects_its_group_the_longest(case: Case) -> None:
    ranking = case.ranking()
    beta = np.zeros(len(case.scores))
    beta[0] = 1e3
    try:
        counts = ranking.counts(case.limits, beta)
    except BudgetError:
        return
    assert counts[0] == case.cost.sizes[0] or (counts[1:] == ranking.floors[1:]).all()
