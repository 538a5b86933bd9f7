"""One network with the weights of many gives what each of them gives; with kernels too, where there are any."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lcprune import models
from lcprune.errors import TuneError
from lcprune.tune.fleet import functions, kernels, layers

MEMBERS, BATCH = 3, 4
# Triton's interpreter runs the kernels without a GPU: TRITON_INTERPRET=1 where triton is installed.
INTERPRETED = kernels.available() and os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available() and kernels.available()
needs_kernels = pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs Triton and a GPU")
DEVICE = "cuda" if CUDA and not INTERPRETED else "cpu"


class Mixed(nn.Module):
    """Every kind of sequence that is joined: plain, depthwise, stride 2, ReLU6, addition with and without ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.deep, self.bn2 = nn.Conv2d(12, 12, 3, 2, 1, groups=12, bias=False), nn.BatchNorm2d(12)
        self.wide, self.bn3 = nn.Conv2d(12, 20, 1, bias=False), nn.BatchNorm2d(20)
        self.conv4, self.bn4 = nn.Conv2d(20, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.conv5, self.bn5 = nn.Conv2d(20, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.short, self.bn6 = nn.Conv2d(20, 20, 3, 2, 1, bias=False), nn.BatchNorm2d(20)
        self.last = nn.Conv2d(20, 16, 3, padding=1)  # no batch norm behind it
        self.six, self.linear = nn.ReLU6(), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.six(self.bn2(self.deep(x)))
        x = self.bn3(self.wide(x))
        x = functional.relu(x + self.bn4(self.conv4(x)))
        x = x + self.bn5(self.conv5(x))
        x = self.last(self.bn6(self.short(x)))
        return self.linear(x.mean((2, 3)))


def digits() -> nn.Module:
    return models.build("digits_resnet", num_classes=10)


def fleet_and_members(network: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """A fleet whose members differ, and each member by itself."""
    torch.manual_seed(0)
    network = network.to(DEVICE).train()
    fleet = layers.fleet_network(network, MEMBERS).train()
    with torch.no_grad():
        for parameter in fleet.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    alone = []
    for member in range(MEMBERS):
        alone.append(copy.deepcopy(network))
        alone[-1].load_state_dict({name: value[member] for name, value in fleet.state_dict().items()})
    return fleet, alone


def batch(network: nn.Module) -> tuple[Tensor, Tensor]:
    shape = (3, 9, 9) if isinstance(network, Mixed) else (1, 8, 8)
    images = torch.randn(MEMBERS * BATCH, *shape, device=DEVICE)
    return images, torch.randint(5, (MEMBERS * BATCH,), device=DEVICE)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, float32 is float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def answers(networks: list[nn.Module], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Outputs, gradients, running statistics, and outputs in evaluation mode; of members, one after the other."""
    found: dict[str, list[Tensor]] = {}
    for network, some, right in zip(networks, images.chunk(len(networks)), labels.chunk(len(networks)), strict=True):
        out = network(some)
        (functional.cross_entropy(out.float(), right) * MEMBERS / len(networks)).backward()
        one = {"outputs": out, **{name: p.grad for name, p in network.named_parameters()}}
        one |= {name: buffer.clone() for name, buffer in network.named_buffers()}
        with torch.no_grad():
            one["outputs in evaluation mode"] = network.eval()(some)
        for name, value in one.items():
            found.setdefault(name, []).append(value.detach())
    return {name: torch.cat([v.reshape(MEMBERS // len(networks), -1) for v in found[name]]).double() for name in found}


def distances(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """The largest of any member, as a share of what it is about."""
    return {
        name: float(((ours[name] - value).norm(dim=1) / value.norm(dim=1).clamp_min(1e-6)).max())
        for name, value in theirs.items()
    }


def compare(fleet: nn.Module, alone: list[nn.Module], images: Tensor, labels: Tensor) -> None:
    """A fleet against its members in float64."""
    exact = answers([copy.deepcopy(network).double() for network in alone], images.double(), labels)
    ours = distances(answers([fleet], images, labels), exact)
    assert not {name: distance for name, distance in ours.items() if not distance <= 1e-4}


@pytest.mark.parametrize("make", [Mixed, digits], ids=["mixed", "digits"])
def test_a_fleet_gives_what_its_members_give(make: Callable[[], nn.Module]) -> None:
    fleet, alone = fleet_and_members(make())
    compare(fleet, alone, *batch(alone[0]))


def test_names_are_the_originals_with_a_leading_dimension() -> None:
    network = Mixed()
    fleet = layers.fleet_network(network, 2)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    assert {name: tuple(value.shape)[1:] for name, value in fleet.state_dict().items()} == shapes
    assert all(value.shape[0] == 2 for value in fleet.state_dict().values())
    assert all(torch.equal(value[1], network.state_dict()[name]) for name, value in fleet.state_dict().items())


def test_sequences_are_joined() -> None:
    runner = layers.fleet_network(Mixed(), 2).forward.__self__
    names = {module: name for name, module in runner.module.named_modules()}
    joined = {names[conv]: (other is not None, top) for _, other, conv, _, top in runner.joined.values()}
    inf = float("inf")
    expected = {"conv1": (False, inf), "deep": (False, 6.0), "wide": (False, 0.0), "conv4": (True, inf)}
    assert joined == expected | {"conv5": (True, 0.0), "short": (False, 0.0)}


def test_a_network_that_cannot_be_traced_runs_layer_by_layer() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn(self.conv(x))
            return y.mean((2, 3)) if float(y.detach().sum()) > -1e9 else y.amax((2, 3))

    fleet, alone = fleet_and_members(Branching())
    images = torch.randn(MEMBERS * BATCH, 3, 8, 8, device=DEVICE)
    for member, network in enumerate(alone):
        own = slice(member * BATCH, (member + 1) * BATCH)
        torch.testing.assert_close(fleet(images)[own], network(images[own]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "word"),
    [(nn.Dropout(0.5), "Dropout"), (nn.GroupNorm(2, 4), "GroupNorm"), (nn.Conv2d(4, 4, 3, groups=2), "Conv2d")],
)
def test_layers_that_no_fleet_can_train_are_named(layer: nn.Module, word: str) -> None:
    with pytest.raises(TuneError, match=f"1 is a {word}.*use fit"):
        layers.fleet_network(nn.Sequential(nn.Conv2d(3, 4, 3), layer), 2)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in float32."""
    monkeypatch.setattr(functions, "on_gpu", lambda x: True)
    monkeypatch.setattr(functions, "HALF", torch.float32)


@needs_kernels
@pytest.mark.parametrize("make", [Mixed, digits], ids=["mixed", "digits"])
def test_kernels_give_what_pytorch_gives(make: Callable[[], nn.Module], fast: None) -> None:
    fleet, alone = fleet_and_members(make())
    compare(fleet, alone, *batch(alone[0]))


@needs_kernels
@pytest.mark.parametrize(
    ("channels", "outputs", "side", "taps", "stride", "padding"),
    [(16, 16, 8, 3, 1, 1), (16, 32, 8, 3, 2, 1), (5, 20, 7, 3, 1, 1), (64, 64, 4, 3, 1, 1), (24, 40, 9, 1, 2, 0),
     (32, 16, 6, 5, 1, 2), (130, 140, 4, 3, 1, 1)],
)  # fmt: skip
def test_convolutions_and_their_gradients(
    channels: int, outputs: int, side: int, taps: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    images = torch.randn(2 * MEMBERS, channels, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    weight = torch.randn(MEMBERS, outputs, channels, taps, taps, device=DEVICE)
    y, part = kernels.convolution(images, weight.permute(0, 1, 3, 4, 2).contiguous(), stride, padding, sums=True)
    own = [slice(2 * member, 2 * member + 2) for member in range(MEMBERS)]
    pairs = list(zip(own, weight, strict=True))
    expected = torch.cat([functional.conv2d(images[some], w, stride=stride, padding=padding) for some, w in pairs])
    dy = torch.randn_like(expected).contiguous(memory_format=torch.channels_last)
    turned = weight.flip(3, 4).permute(0, 2, 3, 4, 1).contiguous()
    dx, _ = kernels.convolution(dy, turned, 1, taps - 1 - padding, stride, (side, side))
    dw = kernels.weight_gradient(dy, images, MEMBERS, taps, stride, padding).permute(0, 1, 4, 2, 3)
    given = [torch.nn.grad.conv2d_input(images[some].shape, w, dy[some], stride, padding) for some, w in pairs]
    taken = [torch.nn.grad.conv2d_weight(images[some], w.shape, dy[some], stride, padding) for some, w in pairs]
    assert part is not None
    by_member = expected.view(MEMBERS, -1, outputs, expected.shape[2] * expected.shape[3])
    sums = torch.stack([by_member.sum((1, 3)), by_member.square().sum((1, 3))], 1)
    found = (y, part.sum(1), dx, dw)
    for ours, theirs in zip(found, (expected, sums, torch.cat(given), torch.stack(taken)), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_no_channel_wakes_at_zero_where_the_kernels_do_not_fit() -> None:
    conv = layers.FleetConv2d(nn.Conv2d(2, 3, 3, dilation=2, bias=False), MEMBERS)
    norm = layers.FleetBatchNorm2d(nn.BatchNorm2d(3), MEMBERS)
    with torch.no_grad():
        conv.weight.zero_(), norm.weight.zero_(), norm.bias.zero_()
    for top in (6.0, float("inf")):
        layers.conv_norm(torch.randn(MEMBERS * BATCH, 2, 7, 7), None, conv, norm, top).sum().backward()
        assert not norm.bias.grad.any()
