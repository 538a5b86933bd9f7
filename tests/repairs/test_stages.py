"""A refit in stages: where one may begin, that layers read what they ever read, and that few images run at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from dependent import error, pairs, settled
from random_networks import NETWORKS, half
from torch import Tensor, nn

import lcprune
from lcprune import models
from lcprune.batches import Batch, call
from lcprune.repairs import layers as layers_module
from lcprune.repairs import mend, refit, stages
from lcprune.repairs.layers import layers_of
from lcprune.repairs.repair import _Work
from lcprune.repairs.stages import Stage, Staged, plan_stages
from lcprune.repairs.watch import Watch, listening
from lcprune.repairs.wiring import Survey, look

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


class _NormTwice(_Residual):
    """One norm before the blocks and among them."""

    def forward(self, x: Tensor) -> Tensor:
        given = self.blocks[0](torch.relu(self.norm(self.stem(x))))
        return self.head(self.blocks[2](self.norm(self.blocks[1](given))).mean((2, 3)))


class _LateNorm(_Residual):
    """A norm reads what a block has read before it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        given = self.blocks[0](torch.relu(self.norm(self.stem(x))))
        return self.head(self.blocks[1](given).mean((2, 3))), self.blocks[2].norm(given)


class _Between(_Residual):
    """Does something to what the second block reads, knowing the images that the network was called with."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(passes_by=False)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        given = self.blocks[0](torch.relu(self.norm(self.stem(x))))
        given = self.blocks[2](self.blocks[1](self.change(given, x)))
        return self.head(given.mean((2, 3)))


class _LateNumber(_Residual):
    """Divides by a number that it has found earlier."""

    def forward(self, x: Tensor) -> Tensor:
        largest = float(x.abs().mean())
        given = self.blocks[1](self.blocks[0](torch.relu(self.norm(self.stem(x)))))
        return self.head(self.blocks[2](given / largest).mean((2, 3)))


class _Checks(_Residual):
    """Refuses other images than it has begun with, by an error of its own."""

    def forward(self, x: Tensor) -> Tensor:
        names = {number: float(image.mean()) for number, image in enumerate(x)}
        given = self.blocks[1](self.blocks[0](torch.relu(self.norm(self.stem(x)))))
        assert len(given) == len(x)
        given = torch.stack([image + names[number] for number, image in enumerate(given)])
        return self.head(self.blocks[2](given).mean((2, 3)))


class _TokensFirst(nn.Module):
    """Linear layers on (places, images, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 2, stride=2), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(self.stem(x).flatten(2).permute(2, 0, 1)))).mean(0)


class _Frames(nn.Module):
    """Each image has four frames, which go through as images."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.two(torch.relu(self.one(x.flatten(0, 1))))
        return self.head(maps.mean((2, 3)).unflatten(0, (-1, 4)).mean(1))


class _Keeps(_Residual):
    """Writes what passes by into a buffer."""

    def __init__(self) -> None:
        super().__init__(passes_by=False)
        self.register_buffer("memory", torch.zeros(64, 8, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        early = torch.relu(self.norm(self.stem(x)))
        self.memory[: len(x)].copy_(early)
        given = self.blocks[1](self.blocks[0](early)) + self.memory[: len(x)]
        return self.head(self.blocks[2](given).mean((2, 3)))


class _Inner(nn.Module):
    """Its norm's output is read by a layer and by a sum, so that only the block itself is a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x, (8,))
        return normed + self.layer(normed)


class _Shrinks(nn.Module):
    """Reads large maps of which its layer sees the maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        small = nn.functional.max_pool2d(x, 8)
        return small + self.layer(torch.relu(small))


class _Handles(_Residual):
    """Goes on if a block fails."""

    def forward(self, x: Tensor) -> Tensor:
        given = torch.relu(self.norm(self.stem(x)))
        try:
            given = self.blocks[0](given)
        except Exception:
            given = given + 0
        return self.head(self.blocks[1](given).mean((2, 3)))


def _gates(model: nn.Module, inputs: Tensor) -> list[str]:
    return [name for name, *_ in Watch(model.eval(), inputs[:2]).gates]


def test_a_gate_is_where_all_goes_through() -> None:
    x = torch.randn(2, 3, 8, 8)
    assert _gates(_Residual(passes_by=False), x) == ["", "norm", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert _gates(_Residual(passes_by=True), x) == ["", "norm", "head"]
    assert _gates(_LateNorm(passes_by=False), x) == ["", "norm", "blocks.0", "blocks.2.norm"]
    assert _gates(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(), nn.Conv2d(8, 3, 1)), x) == ["", "2"]


def test_no_gate_lies_where_a_network_keeps_something_or_between_the_runs_of_a_norm() -> None:
    x = torch.randn(2, 3, 8, 8)
    assert _gates(_Keeps(), x) == ["", "norm"]
    assert _gates(_LateNumber(passes_by=False), x) == [""]
    assert _gates(_NormTwice(passes_by=False), x) == ["", "blocks.2", "head"]


def test_no_feature_map_stays_when_the_gates_are_known() -> None:
    model, read = _Residual(passes_by=False).eval(), list[weakref.ref[Tensor]]()
    with listening(model, ["blocks.0", "head"], lambda name, _, args: read.append(weakref.ref(args[0])), before=True):
        watch = Watch(model, torch.randn(2, 3, 8, 8))
    gc.collect()
    assert watch.gates and len(read) == 2 and all(one() is None for one in read)


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
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: _Between(lambda given, x: given - given.mean(0)),
        lambda: _Between(lambda given, x: given.view(len(x), 8, 8, 8)),
        *(lambda: _LateNumber(passes_by=False), lambda: _Checks(passes_by=False), _TokensFirst, _Frames, _Keeps),
    ],
)
def test_stages_begin_only_where_images_may_arrive_in_several_batches(make: Callable[[], nn.Module], size: int) -> None:
    torch.manual_seed(0)
    model = settled(make()).double()
    images = torch.randn(11, *((4,) if isinstance(model, _Frames) else ()), 3, 8, 8, dtype=torch.float64)
    batches = _batches(images, size)
    planned = plan_stages(model, Survey(model, images[:2]).wiring(_no_cut(model, batches)).gates, batches, 2**40)
    run, seen = Staged(model, batches), dict[str, Tensor]()

    def note(name: str, layer: Any, args: tuple[Tensor, ...]) -> None:
        seen[name] = args[0].clone()

    with torch.no_grad():
        found = [replace(stage, batches=min(count, len(batches))) for count, stage in enumerate(planned, 1)]
        for stage, following in zip(found, [*found[1:], None], strict=True):
            with listening(model, stage.layers, note, before=True):
                run.run(stage, following, {})
                staged = {name: seen[name] for name in stage.layers}
                call(model, torch.cat([batch.inputs for batch in batches[: stage.batches]]))
            for name, read in staged.items():
                torch.testing.assert_close(read, seen[name])


@pytest.mark.usefixtures("at_every_gate")
def test_a_block_is_a_gate_even_if_what_it_begins_with_is_none() -> None:
    model = nn.Sequential(nn.Linear(8, 8), _Inner(), nn.Sequential(_Inner()), nn.Linear(8, 3)).eval()
    batches = _batches(torch.randn(8, 8), 4)
    assert [stage.gate for stage in _planned(model, batches, 2**40)] == ["", "1", "2", "3"]


def test_a_network_that_handles_errors_does_not_go_on_behind_a_gate() -> None:
    model = _Handles(passes_by=False).eval()
    ran: list[str] = []
    with torch.no_grad(), listening(model, ["head"], lambda name, *_: ran.append(name)):
        Staged(model, _batches(torch.randn(4, 3, 8, 8), 2)).run(
            Stage("", 2, 4, 1.0, frozenset()), Stage("blocks.0", 2, 4, 1.0, frozenset()), {}
        )
    assert not ran


def test_what_arrives_at_a_gate_and_frames_of_an_image_take_room() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.MaxPool2d(4), nn.Conv2d(4, 4, 1)))
    gates = Survey(model, x).wiring(_no_cut(model, _batches(x, 2))).gates
    assert [(gate.name, gate.numbers) for gate in gates if gate.name in ("", "2")] == [("", 448), ("2", 256)]
    model, x = _Frames(), torch.randn(2, 4, 3, 8, 8)
    gates = Survey(model, x).wiring(_no_cut(model, _batches(x, 2))).gates
    assert gates[0].numbers == 4 * 16 * 64
    assert gates[0].behind["two"] == [(4, 8, 64)] * 2


def test_early_stages_have_room_for_what_arrives_later() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Upsample(scale_factor=8), _Shrinks()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 3)),
    ).eval()
    batches = _batches(torch.randn(64, 3, 8, 8), 2)
    planned = _planned(model, batches, 2**20)
    assert len(planned) > 1 and planned[0].images * 8 * 64 * 64 * 4 <= 2**20
    run, read = Staged(model, batches), dict[str, int]()
    with torch.no_grad():
        for stage, following in zip(planned, [*planned[1:], None], strict=True):
            with listening(model, stage.layers, lambda name, _, args: read.update({name: len(args[0])}), before=True):
                run.run(stage, following, {})
            assert {read[name] for name in stage.layers} == {stage.images}


def _halved(model: nn.Module, x: Tensor) -> lcprune.Plan:
    graph = lcprune.trace(model, x[:2])
    return graph.plan([range(max(1, group.size // 2)) for group in graph.groups])


def test_a_refit_looks_at_as_many_places_of_frames_as_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PLACES", 1), ("_LOOKED", 64), ("_LOOKED_WIDE", 0)):
        monkeypatch.setattr(layers_module, name, value)
    looked: list[int] = []
    fit = refit._fit

    def heard(*args: Any) -> None:
        looked.append(len(args[4]) * args[4].shape[2])
        fit(*args)

    monkeypatch.setattr(refit, "_fit", heard)
    model, x = _Frames().eval(), torch.randn(3, 4, 3, 8, 8)
    plan = _halved(model, x)
    mend(model, plan, plan.apply(model), pairs(x), "refit", progress=False)
    assert looked and max(looked) <= 64


def test_layers_that_the_whole_network_left_out_are_not_fitted() -> None:
    model, x = _Residual(passes_by=False).eval(), torch.randn(4, 3, 8, 8)
    plan = _halved(model, x)
    small = plan.apply(model).eval()
    sites = {site.name: site for site in look(model, plan, x[:2]).sites if site.patched}
    before = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    with torch.no_grad(), refit._fitting(model, small, sites, {}):
        small(x)
    assert sites and all(torch.equal(tensor, before[name]) for name, tensor in small.state_dict().items())


@pytest.mark.usefixtures("at_every_gate")
@pytest.mark.parametrize("kind", [_Residual, _NormTwice, _LateNorm])
@pytest.mark.parametrize("follow", [None, True, False])
def test_a_refit_in_stages_is_the_refit_at_once(
    monkeypatch: pytest.MonkeyPatch, follow: bool | None, kind: type[_Residual]
) -> None:
    monkeypatch.setitem(_Work.__init__.__globals__, "_CPU_NUMBERS", 2**12)  # several batches
    torch.manual_seed(0)
    model = settled(kind(passes_by=False)).double()
    x = torch.randn(40, 3, 8, 8, dtype=torch.float64)
    plan = _halved(model, x)
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
