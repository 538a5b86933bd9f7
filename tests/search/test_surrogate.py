"""The model of losses: it knows what it was told and what it was not, and which of many points is worth a try."""

from __future__ import annotations

import numpy as np
import pytest

from lcprune.search.surrogate import Surrogate


def points(count: int, seed: int = 0, groups: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, groups))


def bowl(at: np.ndarray) -> np.ndarray:
    """Least at 0.5 in every group; some count more than others."""
    return 0.1 + np.square(at - 0.5) @ np.array([4.0, 2.0, 1.0, 0.5, 0.1])


def test_it_predicts_what_it_has_not_seen() -> None:
    model, seen, others = Surrogate(), points(120), points(200, 1)
    model.fit(seen, bowl(seen))
    mean, deviation = model.expected(others)
    true = np.log(bowl(others))
    assert np.corrcoef(mean, true)[0, 1] > 0.9
    known, _ = model.expected(seen)
    assert np.corrcoef(known, np.log(bowl(seen)))[0, 1] > 0.99
    # It is less sure far away.
    _, far = model.expected(10 * others)
    assert far.mean() > 2 * deviation.mean()


def test_the_most_promising_neighbour_of_the_best_is_a_good_one() -> None:
    ranks = []
    for seed in range(10):
        model, seen = Surrogate(), points(120, seed)
        model.fit(seen, bowl(seen))
        near = seen[np.argmin(bowl(seen))] + 0.5 * points(50, 100 + seed)
        chosen = bowl(near)[int(np.argmax(model.improvement(near)))]
        ranks.append((bowl(near) < chosen).mean())
    assert np.mean(ranks) < 0.2  # by chance 0.5


def test_order_makes_no_difference() -> None:
    seen, others = points(60), points(20, 1)
    one, other = Surrogate(), Surrogate()
    one.fit(seen, bowl(seen))
    other.fit(seen[::-1], bowl(seen)[::-1])
    np.testing.assert_allclose(one.expected(others), other.expected(others), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("more", [0, 1, 3])
def test_points_that_come_later_count_the_same(more: int) -> None:
    """They are added to what was solved; settings and scales are looked for less often."""
    seen, others = points(100 + more), points(20, 1)
    grown, anew = Surrogate(), Surrogate()
    grown.fit(seen[:100], bowl(seen[:100]))
    grown.fit(seen, bowl(seen))
    anew._at, anew._looked, anew._middle, anew._spread = grown._at, 1000, grown._middle, grown._spread
    anew._points, anew._inverse = np.zeros((0, 5)), np.zeros((0, 0))
    anew.fit(seen, bowl(seen))
    np.testing.assert_allclose(grown.expected(others), anew.expected(others), rtol=1e-6, atol=1e-8)
    fresh = Surrogate()
    fresh.fit(seen, bowl(seen))
    np.testing.assert_allclose(grown.expected(others), fresh.expected(others), atol=0.05)


@pytest.mark.parametrize(
    "losses", [[1.0], [0.0, 0.0, 0.0], [-3.0, -2.0, np.inf], [1.0, np.inf, np.inf], [1e-300, 1e300]]
)
def test_odd_losses_give_numbers(losses: list[float]) -> None:
    model = Surrogate()
    model.fit(points(len(losses)), np.array(losses))
    assert np.isfinite(model.improvement(points(4, 1))).all()


def test_equal_points_give_numbers() -> None:
    model = Surrogate()
    model.fit(np.zeros((8, 3)), np.arange(8.0))
    assert np.isfinite(model.improvement(np.ones((2, 3)))).all()
