"""A repaired network is never worse than the one as cut, and nothing but its numbers changes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from dependent import Residual, batch, error, images, pairs, same, settled, take_steps
from random_networks import NETWORKS, half
from torch import Tensor, nn

import lcprune
from lcprune.errors import ConfigError, DataError, LcpruneError
from lcprune.repairs import HOW, expand, mend, repair
from lcprune.repairs.distance import Distance
from lcprune.repairs.distil import RATES, distil, vary
from lcprune.repairs.statistics import renew_statistics
from lcprune.repairs.wiring import look


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_steps(monkeypatch, 6)


def _finite(model: nn.Module) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_nothing_removed_nothing_changed() -> None:
    case = half("plain")
    plan = lcprune.trace(case.model, case.images[:2]).plan({})
    for how in HOW:
        assert same(repair(case.model, plan, [case.images], how, progress=False), case.model)
    assert str(mend(case.model, plan, case.model, pairs(case.images))[1]) == "left as cut"


@pytest.mark.parametrize("name", NETWORKS)
def test_never_farther_from_the_whole_network(name: str) -> None:
    case = half(name)
    plan = case.plan
    cut = plan.apply(case.model)
    for count in (1, 2, 5, 30):
        inputs = case.images[:count]
        as_cut = error(case.model, cut, inputs)
        for how in HOW:
            small = repair(case.model, plan, [inputs], how, progress=False)
            assert error(case.model, small, inputs) <= as_cut * (1 + 1e-5), (count, how)
            assert _finite(small), (count, how)


@pytest.mark.parametrize("name", NETWORKS)
def test_some_images_make_random_networks_better(name: str) -> None:
    case = half(name, count=200)
    plan = case.plan
    small, done = mend(case.model, plan, plan.apply(case.model), pairs(case.images[:160]), progress=False)
    assert done.how != "none"
    assert error(case.model, small, case.images[160:]) < 0.9 * error(
        case.model, plan.apply(case.model), case.images[160:]
    )
    assert done.distances[done.how] == min(done.distances.values()) and done.images == 128 and done.seconds > 0
    assert str(done).startswith(f"repaired ({done.how}): distance from the whole network {done.distances['none']:.3g}")
    assert done.to_json()["distances"] == done.distances


def test_a_mixture_is_a_mean_and_closer_than_what_it_is_made_of() -> None:
    won = 0
    for name in NETWORKS:
        case = half(name, count=60)
        small, done = mend(case.model, case.plan, case.plan.apply(case.model), pairs(case.images), progress=False)
        if done.how != "mixture":
            continue
        assert done.distances["mixture"] < min(done.distances["stand-ins"], done.distances["refit"])
        ends = [
            mend(case.model, case.plan, case.plan.apply(case.model), pairs(case.images), how, progress=False)[0]
            for how in ("stand-ins", "refit")
        ]
        first, second, mixed = (network.state_dict() for network in (*ends, small))
        shares = [(mixed[key] - first[key]) / (second[key] - first[key]) for key in mixed if "weight" in key]
        middle = [float(share[share.isfinite()].median()) for share in shares if bool(share.isfinite().any())]
        assert middle and all(min(abs(share - known) for known in (0.25, 0.5, 0.75)) < 1e-3 for share in middle)
        won += 1
    assert won


@pytest.mark.parametrize("name", ["plain", "without norms", "tokens"])
@pytest.mark.parametrize("how", ["auto", "stand-ins", "refit", "distil"])
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_images_that_are_all_the_same_give_plain_numbers(name: str, how: str, value: float) -> None:
    case = half(name)
    plan = case.plan
    small = repair(case.model, plan, [torch.full_like(case.images, value)], how, progress=False)
    assert _finite(small)
    largest = max(float(tensor.abs().max()) for tensor in case.model.state_dict().values())
    assert max(float(tensor.abs().max()) for tensor in small.state_dict().values()) < 10 * largest


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_images_that_are_not_finite_are_refused(value: float) -> None:
    case = half("plain")
    inputs = case.images.clone()
    inputs[3, 0, 0, 0] = value
    with pytest.raises(DataError, match="not finite"):
        repair(case.model, case.plan, [inputs], progress=False)


def test_no_images_are_refused() -> None:
    case = half("plain")
    plan = case.plan
    with pytest.raises(DataError, match="no images"):
        repair(case.model, plan, [], progress=False)
    with pytest.raises(DataError, match="no images"):
        mend(case.model, plan, plan.apply(case.model), [], progress=False)


@pytest.mark.parametrize("how", ["stand-ins", "refit"])
def test_dead_and_equal_channels(how: str) -> None:
    """Covariances without an inverse."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).double()
    with torch.no_grad():
        for number in (0, 1, 6):
            model[0].weight[number], model[0].bias[number] = 0, 0
        for number in (3, 7):
            model[0].weight[number], model[0].bias[number] = model[0].weight[2], model[0].bias[2]
    inputs = images(3, 7, 7).double()
    graph = lcprune.trace(model, inputs[:2])
    small = repair(model, graph.plan({"0": [0, 1, 2, 3, 4, 5]}), [inputs], how, progress=False)
    assert error(model, small, inputs) < 0.02
    small = repair(model, graph.plan({"0": [0, 1]}), [inputs], how, progress=False)  # dead ones alone stay
    assert _finite(small)


def test_targets_are_not_looked_at() -> None:
    case = half("plain")
    plan, inputs = case.plan, case.images
    small = repair(case.model, plan, [inputs[:20], inputs[20:]], progress=False)
    targets = torch.full((30,), math.nan)
    pairs = [(inputs[:20], targets[:20]), [inputs[20:], targets[20:]]]
    assert same(repair(case.model, plan, pairs, progress=False), small)


@pytest.mark.parametrize("how", ["auto", "distil"])
def test_the_size_of_batches_makes_no_difference(how: str) -> None:
    case = half("residual")
    small = repair(case.model, case.plan, [case.images], how, progress=False)
    for size in (1, 7):
        assert same(repair(case.model, case.plan, case.images.split(size), how, progress=False), small)


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.reader = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, dict[str, Any]]:
        inner = torch.relu(self.left(left) + self.right(right))
        result = self.reader(inner)
        return result, {"penalty": inner.square().mean(), "none": result[:0], "labels": result.argmax(1)}


@pytest.mark.parametrize("how", ["auto", "distil"])
def test_several_inputs_and_outputs(how: str) -> None:
    torch.manual_seed(0)
    model = _Two()
    left, right = images(3, 7, 7), images(3, 7, 7)
    plan = lcprune.trace(model, (left[:2], right[:2])).plan({"left": range(4)})
    by_name = repair(model, plan, [{"left": left, "right": right}], how, progress=False)
    by_place = repair(model, plan, [((left, right), torch.zeros(len(left)))], how, progress=False)
    assert same(by_name, by_place)
    expected, found, cut = (net(left, right)[0] for net in (model, by_name, plan.apply(model)))
    assert (found - expected).square().sum() < 0.7 * (cut - expected).square().sum()


def test_large_and_odd_outputs_are_compared() -> None:
    torch.manual_seed(0)
    inputs = images(3, 4, 4, count=7)

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return [x.mean(), x.flatten(0, 1), x.new_zeros(0), x.repeat(1, 1, 20, 20), "words"]

    same = Distance(Odd(), [batch(inputs[:4]), batch(inputs[4:])])
    assert same(Odd()) == 0
    other = Odd()
    other.forward = lambda x: Odd.forward(other, x + 1)  # type: ignore[method-assign]
    assert 0 < same(other) < math.inf
    other.forward = lambda x: Odd.forward(other, x * math.nan)  # type: ignore[method-assign]
    assert same(other) == math.inf


def test_scores_of_classes_are_compared_as_probabilities() -> None:
    inputs = images(3, 4, 4, count=7)
    batches = [batch(inputs[:4]), batch(inputs[4:])]
    rows = nn.Flatten()

    class Shifted(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 5

    assert Distance(rows, batches, classes=True)(Shifted()) == pytest.approx(0, abs=1e-5)
    assert Distance(rows, batches)(Shifted()) > 1
    many = images(3, 40, 50, count=3)  # more classes than squares are taken of: none is left out
    expected = (flat := many.flatten(1)).softmax(1) * (flat.log_softmax(1) - (2 * flat).log_softmax(1))

    class Doubled(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    found = Distance(rows, [batch(many)], classes=True)(Doubled())
    assert found == pytest.approx(float(expected.sum(1).mean()), rel=1e-4)
    # What is no row of scores per image is compared by squares.
    assert Distance(nn.Identity(), batches, classes=True)(nn.Tanh()) == Distance(nn.Identity(), batches)(nn.Tanh())


def test_networks_without_numbers_to_compare_are_refused() -> None:
    class Labels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(1)

    with pytest.raises(DataError, match="no numbers"):
        Distance(Labels(), [batch(images(3))])


class _Counts(nn.Module):
    """Counts its passes, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.body = NETWORKS["plain"]()

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.body(x)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fails", [False, True])
def test_the_whole_network_is_untouched(how: str, fails: bool) -> None:
    torch.manual_seed(0)
    model = settled(_Counts()).train()
    model.body[1].eval()
    model.body[0].weight.requires_grad_(False)
    inputs = images(3, 8, 8)
    plan = lcprune.trace(model, inputs[:2]).plan({"body.0": range(5)})
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    state = torch.get_rng_state()
    if fails and how != "none":
        inputs[5] = math.nan
        with pytest.raises(LcpruneError):
            repair(model, plan, [inputs], how, progress=False)
    else:
        repair(model, plan, [inputs], how, progress=False)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state()), "no random numbers of others are used up"


@pytest.mark.parametrize(
    ("how", "dtype"), [("stand-ins", torch.float32), ("refit", torch.float64), ("distil", torch.float32)]
)
def test_the_repaired_network_is_like_the_one_as_cut(
    how: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_steps(monkeypatch, 60)
    torch.manual_seed(0)
    model = settled(Residual()).to(dtype, memory_format=torch.channels_last).train()
    model.norm.eval()
    model.stem.weight.requires_grad_(False)
    inputs = images(3, 7, 7).to(dtype)
    plan = lcprune.trace(model, inputs[:2]).plan({"stem": range(1), "inner": range(2)})
    cut = plan.apply(model)
    before = copy.deepcopy(cut.state_dict())
    small, done = mend(model, plan, cut, pairs(inputs), how, progress=False)
    assert done.how == how and small is not cut
    assert all(torch.equal(before[key], value) for key, value in cut.state_dict().items()), "nor is the cut one changed"
    for (name, new), (_, old) in zip(small.named_parameters(), cut.named_parameters(), strict=True):
        assert new.dtype == old.dtype and new.requires_grad == old.requires_grad and new.grad is None, name
        assert new.stride() == old.stride() and new.is_leaf, name
    assert [module.training for module in small.modules()] == [module.training for module in cut.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
    found = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == plan.pruned_shapes()
    lcprune.save(tmp_path / "small", small, plan)
    assert same(lcprune.load(tmp_path / "small", model), small)


@pytest.mark.parametrize("name", NETWORKS)
def test_expand_is_the_way_back(name: str) -> None:
    case = half(name)
    plan = case.plan
    small = plan.apply(case.model)
    with torch.no_grad():
        for tensor in small.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    before = copy.deepcopy(case.model)
    large = expand(case.model, plan, small)
    assert same(plan.apply(large), small)
    assert same(case.model, before)
    assert lcprune.verify(large, plan, case.images[:2], small).ok


def test_wrapped_networks() -> None:
    case = half("plain")
    plan = case.plan
    small = repair(nn.DataParallel(case.model), plan, [case.images], progress=False)
    assert same(small, repair(case.model, plan, [case.images], progress=False))
    assert same(plan.apply(expand(nn.DataParallel(case.model), plan, small)), small)


def test_unknown_repairs_are_refused() -> None:
    case = half("plain")
    with pytest.raises(ConfigError, match=r"'bogus'.*'auto', 'none', 'statistics', 'stand-ins', 'refit', 'distil'"):
        repair(case.model, case.plan, [case.images], "bogus")


@pytest.mark.parametrize("how", HOW)
def test_the_same_seed_gives_the_same_network(how: str) -> None:
    case = half("residual", count=60)
    plan = case.plan
    first = repair(case.model, plan, [case.images], how, images=40, seed=3, progress=False)
    torch.rand(7)
    assert same(repair(case.model, plan, [case.images], how, images=40, seed=3, progress=False), first)
    other = repair(case.model, plan, [case.images], how, images=40, seed=4, progress=False)
    assert how == "none" or not same(other, first)


def test_images_are_shown_in_part() -> None:
    flat, ramp = torch.full((64, 2, 9, 9), 3.0), torch.arange(9.0).expand(64, 2, 9, 9)
    inputs = {"flat": flat, "ramp": ramp, "more": (torch.ones(64, 5), torch.ones(64, 1, 4, 4, dtype=torch.int64))}
    shown = vary(inputs, 64, torch.Generator().manual_seed(0))
    assert torch.allclose(shown["flat"], flat)
    assert all(torch.equal(*pair) for pair in zip(shown["more"], inputs["more"], strict=True)), "no images"
    assert shown["ramp"].min() >= 0 and shown["ramp"].max() <= 8 and shown["ramp"].shape == ramp.shape
    rises = shown["ramp"][:, 0, 0, -1] - shown["ramp"][:, 0, 0, 0]
    assert 16 <= int((rises < 0).sum()) <= 48, "half are mirrored"
    assert 16 <= int((rises.abs() < 7.99).sum()) <= 48 and rises.abs().min() > 8 * 0.35**0.5 / 1.6, "half are crops"


@pytest.mark.parametrize("name", ["plain", "tokens", "residual", "up and down"])
@pytest.mark.parametrize("rate", RATES, ids=["large", "small"])
def test_distillation_comes_closer(rate: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_steps(monkeypatch, 80)
    case = half(name, count=60)
    plan = case.plan
    small = plan.apply(case.model)
    renew_statistics(small, [batch(case.images)])
    distance = Distance(case.model, [batch(case.images)])
    before = distance(small)
    statistics = [b.clone() for name, b in small.named_buffers() if "running" in name]
    distil(case.model, small, look(case.model, plan, case.images[:2]), batch(case.images), rate, 0, False)
    assert distance(small) < 0.9 * before
    after = [b for name, b in small.named_buffers() if "running" in name]
    assert bool(after) == (name != "tokens")  # which has no batch norms
    assert not any(torch.equal(*pair) for pair in zip(statistics, after, strict=True))
    assert not any(module.training for module in small.modules())
