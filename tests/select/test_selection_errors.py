"""What selection says when it is asked for the impossible, and how limits and schedules are read."""

from __future__ import annotations

import numpy as np
import pytest

import lcprune
from lcprune.cost import Axis, Cost, Term
from lcprune.errors import BudgetError, ConfigError, MetricError, SearchError
from lcprune.select import Extra, Limits, Ranking

SIZES = (16, 32, 64)


@pytest.fixture
def cost() -> Cost:
    first, second, third = (Axis(0, ((g, 1),)) for g in range(3))
    macs = [Term(27 * 900, (first,)), Term(9 * 900, (first, second)), Term(9 * 200, (second, third))]
    params = [Term(27, (first,)), Term(9, (first, second)), Term(9, (second, third)), Term(10, (third,))]
    return Cost(["stem", "layer1.conv1", "layer1.conv2"], SIZES, macs, params)


@pytest.fixture
def scores() -> list[np.ndarray]:
    return [np.random.default_rng(g).random(n) for g, n in enumerate(SIZES)]


def counts(kept: list[np.ndarray]) -> list[int]:
    return [len(units) for units in kept]


@pytest.mark.parametrize("name", ["macs", "params"])
def test_a_limit_that_is_none_is_named_with_its_value(name: str) -> None:
    with pytest.raises(BudgetError, match=rf"^{name}='half' is not a limit.*{name}=0\.5"):
        Limits(**{name: "half"})  # type: ignore[arg-type]


def test_an_extra_limit_is_checked_under_its_name() -> None:
    with pytest.raises(BudgetError, match=r"latency=-2"):
        Limits(extra={"latency": Extra(lambda counts: 1.0, -2)})


def test_no_limit_at_all_is_an_error(cost: Cost, scores: list[np.ndarray]) -> None:
    assert not Limits()
    with pytest.raises(BudgetError, match=r"no limit was given.*macs='50%'"):
        Ranking(scores, cost).select(Limits())


@pytest.mark.parametrize("limits", [Limits(macs=1), Limits(macs=1e12), Limits(params=1.0, macs=1e12)])
def test_a_limit_above_the_whole_cost_keeps_everything(cost: Cost, scores: list[np.ndarray], limits: Limits) -> None:
    ranking = Ranking(scores, cost)
    assert counts(ranking.select(limits)) == list(SIZES)
    assert counts(ranking.uniform(limits)) == list(SIZES)


def test_fraction_and_absolute_limit_agree(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost)
    absolute = 0.4 * cost.macs(SIZES)
    assert counts(ranking.select(Limits(macs=0.4))) == counts(ranking.select(Limits(macs=absolute)))


def test_impossible_names_the_smallest_network(cost: Cost, scores: list[np.ndarray]) -> None:
    smallest = cost.macs([2, 4, 7])
    share = f"{100 * smallest / cost.macs(SIZES):.1f}"
    wanted = rf"^macs=0\.002 cannot be met: with min_keep=0\.10 the smallest network has 163\.8 k MACs \({share} %\)$"
    with pytest.raises(BudgetError, match=wanted):
        Ranking(scores, cost, min_keep=0.10).select(Limits(macs=0.002))
    assert round(smallest / 1e3, 1) == 163.8


def test_impossible_names_multiple_of_and_every_broken_limit(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost, min_keep=0.2, multiple_of=8)
    with pytest.raises(
        BudgetError, match=r"macs=0\.001 .*min_keep=0\.20 and multiple_of=8.*; params='0.1k' cannot"
    ) as e:
        ranking.uniform(Limits(macs=0.001, params="0.1k"))
    assert isinstance(e.value, lcprune.errors.LcpruneError)


def test_an_extra_cost_binds_like_any_other(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost)
    # With the whole network's value; here latency is 2 ms plus 1/16 per unit.
    latency = Extra(lambda kept: 2 + float(np.sum(kept)) / 16, 0.5, 9.0)
    found = ranking.counts(Limits(macs=0.9, extra={"latency": latency}))
    assert found.sum() == 40
    assert cost.macs(found) <= 0.9 * cost.macs(SIZES)
    with pytest.raises(BudgetError, match=r"latency='2\.1ms' .* takes 2\.812 ms \(28\.1 %\)"):
        ranking.counts(Limits(extra={"latency": Extra(latency.cost, "2.1ms", 10.0)}))


@pytest.mark.parametrize(
    ("size", "min_keep", "multiple_of", "widths"),
    [
        (20, 0.1, 8, [20, 16, 8]),  # whole, though 20 is no multiple
        (16, 0.6, 8, [16]),  # no multiple between the floor 10 and 16
        (3, 0.1, 8, [3]),  # smaller than the multiple: whole
        (8, 0.0, 8, [8]),
        (5, 0.0, 1, [5, 4, 3, 2, 1]),
        (100, 0.07, 1, list(range(100, 6, -1))),  # 0.07 * 100 > 7 in floating point
    ],
)
def test_allowed_widths(size: int, min_keep: float, multiple_of: int, widths: list[int]) -> None:
    axis = Axis(0, ((0, 1),))
    cost = Cost(["only"], [size], [Term(1, (axis,))], [Term(1, (axis,))])
    ranking = Ranking([np.arange(size)], cost, min_keep, multiple_of)
    assert ranking.floors.tolist() == [widths[-1]]
    # Half a unit of slack: 0.29 of 100 is a little less than 29 in floating point, and a limit is strict.
    limits = [Limits(macs=min(1.0, (n + 0.5) / size)) for n in range(widths[-1], size + 1)]
    assert {counts(ranking.select(each))[0] for each in limits} == set(widths)


def test_own_floors_bind_where_they_are_higher(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost, min_keep=0.25, multiple_of=4, floors=[1, 14, 65])
    assert ranking.floors.tolist() == [4, 16, 64]
    assert counts(ranking.schedule({"*": 0.0})) == [4, 16, 64]
    with pytest.raises(SearchError, match=r"floors has shape \(1,\)"):
        Ranking(scores, cost, floors=[3])


def test_schedule_goes_by_name_before_pattern(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost)
    kept = ranking.schedule({"layer1.*": 0.5, "layer1.conv2": 0.25})
    assert counts(kept) == [16, 16, 16]
    np.testing.assert_array_equal(kept[2], np.sort(np.argsort(scores[2])[-16:]))


def test_schedule_respects_floor_and_widths(cost: Cost, scores: list[np.ndarray]) -> None:
    assert counts(Ranking(scores, cost, min_keep=0.25).schedule({"*": 0.0})) == [4, 8, 16]
    # 0.3 of 16, 32, 64 is 4.8, 9.6, 19.2: the nearest multiples of 8.
    assert counts(Ranking(scores, cost, multiple_of=8).schedule({"*": 0.3})) == [8, 8, 16]


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan"), True])
def test_schedule_rejects_what_is_no_fraction(cost: Cost, scores: list[np.ndarray], fraction: float) -> None:
    with pytest.raises(ConfigError, match=r"'stem'.*not a fraction"):
        Ranking(scores, cost).schedule({"stem": fraction})


def test_schedule_names_an_unknown_layer_and_a_near_one(cost: Cost, scores: list[np.ndarray]) -> None:
    with pytest.raises(ConfigError, match=r"'layer1.conv3' matches no group.*layer1\.conv"):
        Ranking(scores, cost).schedule({"layer1.conv3": 0.5})


def test_schedule_is_held_against_limits(cost: Cost, scores: list[np.ndarray]) -> None:
    ranking = Ranking(scores, cost)
    assert counts(ranking.schedule({"*": 0.5}, Limits(macs=0.5))) == [8, 16, 32]
    with pytest.raises(BudgetError, match=r"macs=0\.5 .*this schedule.*MACs"):
        ranking.schedule({"stem": 0.9}, Limits(macs=0.5))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"min_keep": -0.1}, "min_keep=-0.1"),
        ({"min_keep": 1.1}, "min_keep=1.1"),
        ({"multiple_of": 0}, "multiple_of=0"),
    ],
)
def test_bad_options_are_named(cost: Cost, scores: list[np.ndarray], options: dict[str, float], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Ranking(scores, cost, **options)  # type: ignore[arg-type]


def test_scores_and_betas_that_cannot_be_ranked_are_named(cost: Cost, scores: list[np.ndarray]) -> None:
    with pytest.raises(MetricError, match="2 score arrays for 3 groups"):
        Ranking(scores[:2], cost)
    with pytest.raises(MetricError, match=r"'layer1.conv1' have shape \(16,\)"):
        Ranking([scores[0], scores[0], scores[2]], cost)
    with pytest.raises(MetricError, match=r"'layer1.conv2' are not all finite"):
        Ranking([*scores[:2], np.full(64, np.nan)], cost)
    ranking = Ranking(scores, cost)
    with pytest.raises(SearchError, match=r"beta has shape \(2,\)"):
        ranking.select(Limits(macs=0.5), beta=[0, 1])
    with pytest.raises(SearchError, match=r"beta of group 'layer1.conv1' is not finite"):
        ranking.select(Limits(macs=0.5), beta=[0, np.nan, 0])
    with pytest.raises(SearchError, match=r"alpha has -1"):
        ranking.select(Limits(macs=0.5), alpha=[1, -1, 1])


def test_a_network_without_groups_is_whole_or_impossible() -> None:
    cost = Cost([], [], [Term(1000, ())], [Term(10, ())])
    ranking = Ranking([], cost)
    assert ranking.select(Limits(macs=1)) == []
    with pytest.raises(BudgetError, match=r"macs=0\.5 cannot be met.* 1 k MACs \(100\.0 %\)"):
        ranking.select(Limits(macs=0.5))
