"""A channel that the kept ones determine is rebuilt, whatever reads it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from dependent import CASES, Case, OwnPadding, batch, error, images, pairs
from torch import nn

import lcprune
from lcprune.repairs import mend, repair
from lcprune.repairs.layers import coverage
from lcprune.repairs.moments import measure_moments
from lcprune.repairs.stand_ins import stand_in
from lcprune.repairs.wiring import look


def _stood_in(case: Case) -> nn.Module:
    plan = case.plan
    small = plan.apply(case.model)
    sites = look(case.model, plan, case.images[:2]).sites
    stand_in(case.model, small, sites, measure_moments(case.model, sites, [batch(case.images)]))
    return small


@pytest.mark.parametrize("name", CASES)
def test_what_kept_channels_determine_is_rebuilt(name: str) -> None:
    case = CASES[name]()
    plan = case.plan
    cut = plan.apply(case.model)
    as_cut = error(case.model, cut, case.images)
    assert as_cut > 0.1, "the cut must hurt"

    small = _stood_in(case)
    fresh = torch.randn_like(case.images) + case.images.mean()
    assert error(case.model, small, case.images) < 2e-3
    assert error(case.model, small, fresh) < 2e-3, "images that were not seen"
    assert {key: value.shape for key, value in small.state_dict().items()} == {
        key: value.shape for key, value in cut.state_dict().items()
    }

    for how, most in (("stand-ins", 2e-3), ("refit", 0.05), ("auto", 0.05)):
        mended, done = mend(case.model, plan, plan.apply(case.model), pairs(case.images), how, progress=False)
        assert done.how == how or how == "auto"
        assert not done.left
        assert error(case.model, mended, case.images) < most, how


@pytest.mark.parametrize(
    "reader",
    [
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Conv2d(4, 3, 3, padding=1, stride=2),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1),
        OwnPadding(4, 3, 3),
    ],
    ids=str,
)
def test_a_constant_behind_zero_padding_and_strides_is_right_on_average(reader: Any) -> None:
    """At borders, and between the strides of a transposed layer, one bias cannot be right everywhere."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), copy.deepcopy(reader)).double()
    with torch.no_grad():
        model[0].weight[3], model[0].bias[3] = 0, 5
    inputs = images(3, 5, 5).double()
    plan = lcprune.trace(model, inputs[:2]).plan({"0": range(3)})
    small = repair(model, plan, [inputs], "stand-ins", progress=False)
    apart, before = ((net(inputs) - model(inputs)).detach().mean((0, 2, 3)).abs() for net in (small, plan.apply(model)))
    assert apart.max() < 0.03 * before.max()


@pytest.mark.parametrize(
    ("layer", "size", "expected"),
    [
        (nn.Conv1d(2, 3, 3), (4,), [1, 1, 1]),
        (nn.Conv1d(2, 3, 3, padding=1), (4,), [3 / 4, 1, 3 / 4]),
        (nn.Conv1d(2, 4, 3, padding=1, groups=2, padding_mode="circular"), (4,), [1, 1, 1]),
        (nn.Conv2d(2, 3, 3, padding=1), (1, 2), [0, 0, 0, 1 / 2, 1, 1 / 2, 0, 0, 0]),
        (nn.ConvTranspose1d(2, 3, 2, stride=2), (4,), [1 / 2, 1 / 2]),
        (nn.ConvTranspose1d(2, 2, 1, groups=2).half(), (300,), [1]),
    ],
    ids=str,
)
def test_coverage_is_the_share_of_outputs_for_which_a_tap_lies_on_the_input(
    layer: Any, size: tuple[int, ...], expected: list[float]
) -> None:
    torch.testing.assert_close(coverage(layer, size), torch.tensor(expected, dtype=torch.float64))


def test_a_constant_goes_into_the_running_mean_where_there_is_no_bias() -> None:
    case = CASES["constant_into_a_batch_norm"]()
    small, cut = _stood_in(case), case.plan.apply(case.model)
    changed = {key for key, value in small.state_dict().items() if not torch.equal(value, cut.state_dict()[key])}
    assert changed == {"1.weight", "2.running_mean"}


def test_a_constant_goes_into_the_bias_where_there_is_one() -> None:
    case = CASES["constant_into_both_a_bias_and_a_batch_norm"]()
    small, cut = _stood_in(case), case.plan.apply(case.model)
    changed = {key for key, value in small.state_dict().items() if not torch.equal(value, cut.state_dict()[key])}
    assert changed == {"1.weight", "1.bias"}


def test_depthwise_transposed_layers_lose_whole_groups() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    ).double()
    inputs = images(3, 6, 6).double()
    plan = lcprune.trace(model, inputs[:2]).plan({"0": [0, 2, 3, 5, 7]})
    for how in ("stand-ins", "refit"):
        small, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
        assert done.how == how
        assert error(model, small, inputs) < error(model, plan.apply(model), inputs)


@pytest.mark.parametrize("kept", [range(0, 128, 2), range(64), [*range(100), 127]], ids=["alternate", "half", "most"])
def test_large_linear_layers_behind_a_flatten_work_by_channel(kept: range) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 128, 1), nn.Flatten(), nn.Linear(128 * 49, 10))
    inputs = images(3, 7, 7)
    plan = lcprune.trace(model, inputs[:2]).plan({"0": kept})
    sites = look(model, plan, inputs[:2]).sites
    moments = measure_moments(model, sites, [batch(inputs)])
    assert [part.products.shape for part in moments.values()] == [(128, 128)]
    as_cut = error(model, plan.apply(model), inputs)
    for how in ("stand-ins", "refit", "auto"):  # three colours determine all 128 channels
        small = repair(model, plan, [inputs], how, progress=False)
        assert error(model, small, inputs) < 0.02 < as_cut


def test_moments_do_not_depend_on_batches() -> None:
    case = CASES["residual"]()
    sites = look(case.model, case.plan, case.images[:2]).sites
    every = measure_moments(case.model, sites, [batch(case.images)])
    for parts in (case.images.flip(0).split(7), case.images.split(50), case.images.split(1)):
        some = measure_moments(case.model, sites, [batch(part) for part in parts])
        assert every.keys() == some.keys() and every
        for run, moments in every.items():
            assert moments.count == some[run].count
            torch.testing.assert_close(some[run].mean, moments.mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(some[run].second, moments.second, rtol=1e-5, atol=1e-6)


def test_moments_are_those_of_all_places_where_there_are_few() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 3)).double()
    inputs = images(3, 5, 5).double() + 100  # far from zero
    plan = lcprune.trace(model, inputs[:2]).plan({"0": range(4)})
    sites = look(model, plan, inputs[:2]).sites
    (moments,) = measure_moments(model, sites, [batch(part) for part in inputs.split(50)]).values()
    rows = model[0](inputs).detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(moments.mean, rows.mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        moments.second - torch.outer(moments.mean, moments.mean), rows.cov(correction=0), rtol=1e-2, atol=1e-3
    )


def test_one_tensor_that_many_read_is_measured_once() -> None:
    case = CASES["residual"]()
    sites = look(case.model, case.plan, case.images[:2]).sites
    assert [site.name for site in sites if site.cut] == ["inner", "head", "side"]
    assert len(measure_moments(case.model, sites, [batch(case.images)])) == 3  # before and after the block, and pooled
