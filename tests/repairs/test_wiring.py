"""What one pass tells of a network's layers, in networks that use them in odd ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dependent import error, images, pairs, settled, take_steps
from torch import Tensor, nn
from torch.nn import functional as F

import lcprune
from lcprune.errors import TuneError
from lcprune.repairs import mend, repair, stages
from lcprune.repairs.layers import patches, some_places
from lcprune.repairs.watch import listening
from lcprune.repairs.wiring import Wiring, look


def _looked(model: nn.Module, kept: dict[str, Any], inputs: Tensor) -> Wiring:
    return look(model, lcprune.trace(model, inputs[:2]).plan(kept), inputs[:2])


def _mended(model: nn.Module, kept: dict[str, Any], inputs: Tensor, how: str) -> Any:
    plan = lcprune.trace(model, inputs[:2]).plan(kept)
    small, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
    assert error(model, small, inputs) <= (1 + 1e-5) * error(model, plan.apply(model), inputs)
    return done


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.weight, self.last = nn.Parameter(torch.randn(6, 8, 3, 3)), nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.conv2d(torch.relu(self.first(x)), self.weight).mean((2, 3)), self.last)


def test_weights_without_a_layer_are_named() -> None:
    torch.manual_seed(0)
    wiring = _looked(_Functional(), {"first": range(4), "weight": range(3)}, images(3, 7, 7))
    assert list(wiring.left) == ["weight", "last"]


class _TiedBack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.code(x)), self.code.weight.t())


def test_weights_that_are_used_outside_of_their_layer_are_named() -> None:
    torch.manual_seed(0)
    wiring = _looked(_TiedBack(), {"code": range(5)}, images(6))
    assert list(wiring.left) == ["code"] and "outside" in wiring.left["code"] and not wiring.sites


class _ChannelsAsPlaces(nn.Module):
    """Attention between neighbouring channels: a convolution whose places are channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.across, self.last = nn.Conv2d(3, 8, 3), nn.Conv1d(1, 1, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        scale = self.across(x.mean((2, 3))[:, None]).sigmoid()
        return self.last(x * scale[:, 0, :, None, None])


@pytest.mark.parametrize("how", ["stand-ins", "refit", "distil"])
def test_places_that_are_channels_are_not_compared(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_steps(monkeypatch, 5)
    torch.manual_seed(0)
    model, inputs = _ChannelsAsPlaces(), images(3, 7, 7)
    assert {site.name: site.patched for site in _looked(model, {"first": range(5)}, inputs).sites} == {
        "first": True,
        "across": False,
        "last": True,
    }
    assert _mended(model, {"first": range(5)}, inputs, how).how != "none"


class _NormOverTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.second(torch.relu(self.first(x)))))


@pytest.mark.parametrize("how", ["stand-ins", "refit"])
def test_a_norm_over_tokens_takes_no_shift_of_features(how: str) -> None:
    torch.manual_seed(0)
    model, inputs = settled(_NormOverTokens()), images(8, 6)
    sites = {site.name: site for site in _looked(model, {"first": range(5)}, inputs).sites}
    assert sites["second"].norm is None
    _mended(model, {"first": range(5)}, inputs, how)


class _Returns(nn.Module):
    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.inner = inner

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.second(torch.relu(self.first(x)))
        return [self.norm(x), x] if self.inner else [self.norm(x)]


@pytest.mark.parametrize("inner", [False, True])
def test_a_norm_takes_shifts_only_where_it_alone_reads(inner: bool) -> None:
    torch.manual_seed(0)
    sites = _looked(settled(_Returns(inner)), {"first": range(5)}, images(3, 7, 7)).sites
    assert [site.norm for site in sites] == [None, None if inner else "norm"]


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.one(x) + self.two(x.relu_())


def test_what_is_written_over_is_measured_again() -> None:
    torch.manual_seed(0)
    sites = _looked(_InPlace(), {"first": range(5)}, images(3, 7, 7)).sites
    assert [site.runs for site in sites[1:]] == [(("one", 0),), (("two", 0),)]


class _BothKinds(nn.Module):
    """One tensor that a convolution reads along one side and a linear layer along the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.linear = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 4, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.conv(x).mean(2) + self.linear(x).mean(1)


def test_what_two_kinds_of_layers_read_is_measured_for_each() -> None:
    torch.manual_seed(0)
    sites = _looked(_BothKinds(), {"first": range(5)}, images(3, 8)).sites
    assert sites[1].runs == (("conv", 0),) and sites[2].runs == (("linear", 0),)


class _NeverRuns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.side = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.first(x))
        return (self.last(x), self.side(x)) if self.training else self.last(x)


def test_layers_that_only_training_runs_are_named() -> None:
    torch.manual_seed(0)
    wiring = _looked(_NeverRuns().eval(), {"first": range(5)}, images(3, 7, 7))
    assert wiring.left == {"side": "it does not run in evaluation mode"}


class _Inference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_networks_without_gradients() -> None:
    torch.manual_seed(0)
    model, inputs = _Inference(), images(3, 7, 7)
    for how in ("stand-ins", "refit"):
        assert _mended(model, {"body.0": range(5)}, inputs, how).how == how
    plan = lcprune.trace(model, inputs[:2]).plan({"body.0": range(5)})
    with pytest.raises(TuneError, match="cannot be trained"):
        repair(model, plan, [inputs], "distil", progress=False)


class _ByName(nn.Module):
    """Norms, layers and a block that are given what they read by name, or by place."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, 4)
        self.named = named

    def forward(self, x: Tensor) -> Tensor:
        if not self.named:
            x = self.norm(self.first(x)).relu()
            return self.last((self.body(x) + x).mean((2, 3)))
        x = self.norm(input=self.first(input=x)).relu()
        return self.last(input=(self.body(input=x) + x).mean((2, 3)))


def test_what_is_given_by_name_is_repaired_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_MORE", 0)  # another stage wherever one may begin
    torch.manual_seed(0)
    model, inputs = settled(_ByName(named=False)), images(3, 7, 7)
    for how in ("statistics", "stand-ins", "refit"):
        found = []
        for model.named in (False, True):
            plan = lcprune.trace(model, inputs[:2]).plan({"first": range(5)})
            small, done = mend(model, plan, plan.apply(model), pairs(inputs), how, progress=False)
            assert done.how == how and not done.left
            found.append(small.state_dict())
        for name, numbers in found[0].items():
            torch.testing.assert_close(found[1][name], numbers, rtol=0, atol=0)


class _AnyNorm(nn.BatchNorm2d):
    def forward(self, *args: Any, **named: Any) -> Tensor:
        return super().forward(*args, **named)


def test_the_first_of_several_names_is_what_a_module_takes_first() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, scale: float) -> Tensor:
            return x * scale

    heard: list[Any] = []
    model = nn.ModuleDict({"both": Both(), "norm": _AnyNorm(3)})
    with listening(model, ["both", "norm"], lambda name, module, args: heard.append(args), before=True):
        model["norm"](input=model["both"](scale=2.0, x=torch.ones(2, 3, 1, 1)))
    assert [float(given.mean()) for (given,) in heard] == [1.0, 2.0]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 6, (3, 2), padding=(2, 1), bias=False),
        nn.Conv2d(4, 6, (2, 3), padding="same", padding_mode="reflect", bias=False),
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", stride=2, bias=False),
        nn.Conv3d(4, 6, 2, padding=1, bias=False),
        nn.Linear(7, 6, bias=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("most", [5, 10_000])
def test_outputs_are_the_weight_times_patches(layer: Any, most: int) -> None:
    sides = len(getattr(layer, "kernel_size", (1, 1)))
    inputs = torch.randn(3, 4, *(7 for _ in range(sides)))
    outputs = layer(inputs).detach()
    outputs = outputs.flatten(1, -2).transpose(1, 2) if isinstance(layer, nn.Linear) else outputs.flatten(2)
    expected = outputs[:, :, some_places(outputs.shape[2], most, outputs.device)].transpose(1, 2).flatten(0, 1)
    found = patches(layer, inputs, most).flatten(1) @ layer.weight.detach().flatten(1).T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
