"""A refit in stages: where one may begin, that layers read what they ever read, and that few images run at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from dependent import error, pairs, settled
from random_networks import NETWORKS, half
from torch import Tensor, nn

import lcprune
from lcprune import models
from lcprune.batches import Batch, call
from lcprune.repairs import mend, stages
from lcprune.repairs.layers import layers_of
from lcprune.repairs.repair import _Work
from lcprune.repairs.stages import Stage, Staged, plan_stages
from lcprune.repairs.watch import Watch, listening
from lcprune.repairs.wiring import Survey

ROOM = 2**22


class _Residual(nn.Module):
    """A stem, blocks, and what a test does between them."""

    def __init__(self, passes_by: bool) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList([_Block(), _Block(), _Block()])
        self.head = nn.Linear(8, 3)
        self.passes_by = passes_by

    def forward(self, x: Tensor) -> Tensor:
        early = given = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            given = block(given)
        return self.head((given + early if self.passes_by else given).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.two(torch.relu(self.one(x)))) + x)


def _gates(model: nn.Module, inputs: Tensor) -> list[str]:
    return [name for name, _ in Watch(model.eval(), inputs[:2]).gates()]


def test_a_gate_is_where_all_goes_through() -> None:
    x = torch.randn(2, 3, 8, 8)
    assert _gates(_Residual(passes_by=False), x) == ["", "norm", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert _gates(_Residual(passes_by=True), x) == ["", "norm", "blocks.0", "head"]


def _batches(images: Tensor, size: int) -> list[Batch]:
    return [Batch(part, (), len(part)) for part in images.split(size)]


def _planned(model: nn.Module, batches: Sequence[Batch], room: int) -> list[Stage]:
    return plan_stages(model, Survey(model, batches[0].inputs[:2]).wiring(_no_cut(model, batches)).gates, batches, room)


def _no_cut(model: nn.Module, batches: Sequence[Batch]) -> lcprune.Plan:
    graph = lcprune.trace(model, batches[0].inputs[:2])
    return graph.plan([range(group.size) for group in graph.groups])


@pytest.fixture
def at_every_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stage wherever one may begin."""
    monkeypatch.setattr(stages, "_MORE", 0)


def test_stages_have_every_layer_once_and_ever_more_images() -> None:
    model = models.build("resnet20").eval()
    batches = _batches(torch.randn(64, 3, 32, 32), 2)
    found = _planned(model, batches, ROOM)
    assert len(found) > 2 and found[0].gate == ""
    layers = [layer for stage in found for layer in stage.layers]
    assert sorted(layers) == sorted(layers_of(model))
    counts = [stage.images for stage in found]
    assert counts == sorted(counts) and counts[0] < counts[-1] == 64
    assert all(stage.images == 2 * stage.batches for stage in found)
    assert [(stage.gate, stage.images) for stage in _planned(model, batches, 2**40)] == [("", 64)]


@pytest.mark.usefixtures("at_every_gate")
@pytest.mark.parametrize("name", [*NETWORKS, "resnet20", "mobilenetv2"])
def test_layers_read_in_stages_what_they_read_at_once(name: str) -> None:
    torch.manual_seed(0)
    size = 8 if name in NETWORKS else 32
    model = settled(NETWORKS[name]() if name in NETWORKS else models.build(name, num_classes=10))
    images = torch.randn(12, 3, size, size)
    batches = _batches(images, 3)
    planned = _planned(model, batches, 2**40)
    expected: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    layers = layers_of(model)

    with torch.no_grad():
        with listening(model, layers, lambda name, layer, args: expected.update({name: args[0].clone()}), before=True):
            call(model, images)
        run = Staged(model, batches)
        for stage, following in zip(planned, [*planned[1:], None], strict=True):
            assert stage.images == 12 and (following is None or stage.layers)

            def note(name: str, layer: Any, args: tuple[Tensor, ...]) -> None:
                seen[name] = args[0].clone()

            with listening(model, stage.layers, note, before=True):
                run.run(stage, following, {})
    assert len(planned) > 1 or name in ("residual",)
    assert seen.keys() == expected.keys()
    for layer, read in expected.items():
        torch.testing.assert_close(seen[layer], read, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("at_every_gate")
@pytest.mark.parametrize("follow", [None, True, False])
def test_a_refit_in_stages_is_the_refit_at_once(monkeypatch: pytest.MonkeyPatch, follow: bool | None) -> None:
    torch.manual_seed(0)
    model = settled(_Residual(passes_by=False)).double()
    x = torch.randn(40, 3, 8, 8, dtype=torch.float64)
    graph = lcprune.trace(model, x[:2])
    plan = graph.plan([range(max(1, group.size // 2)) for group in graph.groups])
    found = []
    for more in (2**40, 0):  # one stage, many
        monkeypatch.setattr(stages, "_MORE", more)
        work = _Work(model, plan, plan.apply(model), pairs(x[8:]), pairs(x[:8]), "refit", False)
        assert (len(work.stages) == 1) == (more > 0)
        work._try("refit", [follow])
        found.append(work.kept["refit"](x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_few_images_run_at_once_where_little_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_Work.__init__.__globals__, "_BYTES", 2**17)
    monkeypatch.setitem(_Work.__init__.__globals__, "_CPU_NUMBERS", 2**12)
    case = half("plain", count=60)
    as_cut = case.plan.apply(case.model)
    most: dict[str, int] = {}
    original = _Work._try

    def heard(self: _Work, name: str, follows: Any) -> list[float]:
        def note(layer: str, module: Any, args: tuple[Tensor, ...]) -> None:
            most[layer] = max(most.get(layer, 0), len(args[0]))

        with listening(self.whole, layers_of(self.whole), note, before=True):
            return original(self, name, follows)

    monkeypatch.setattr(_Work, "_try", heard)
    small, done = mend(case.model, case.plan, as_cut, pairs(case.images), "refit", progress=False)
    assert done.how == "refit" and done.images == 48
    assert most["0"] < 48 == most["9"]
    assert error(case.model, small, case.images) < error(case.model, as_cut, case.images)
