"""The contract of every evaluator: its loss is the physically pruned network's loss."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.batches import collate, draw
from lcprune.evaluate import Evaluation, SlicingEvaluator, ZeroingEvaluator, make_evaluator

KINDS = {
    "slice": lambda graph, batches: SlicingEvaluator(graph, batches, cross_entropy),
    "slice, not folded": lambda graph, batches: SlicingEvaluator(graph, batches, cross_entropy, fold=False),
    "zero": lambda graph, batches: ZeroingEvaluator(graph, batches, cross_entropy),
    "zero, not folded": lambda graph, batches: ZeroingEvaluator(graph, batches, cross_entropy, fold=False),
    "zero, fused": lambda graph, batches: ZeroingEvaluator(graph, batches, cross_entropy, fuse=True),
    "slice, channels last": lambda graph, batches: SlicingEvaluator(graph, batches, cross_entropy, channels_last=True),
    "zero, channels last": lambda graph, batches: ZeroingEvaluator(graph, batches, cross_entropy, channels_last=True),
}


def selections(graph, count: int = 4):
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield [np.sort(rng.permutation(group.size)[: rng.integers(1, group.size + 1)]) for group in graph.groups]


def physical(graph, batches, kept) -> float:
    model = graph.plan(kept).apply(graph.model).eval()
    images = sum(batch.size for batch in batches)
    with torch.no_grad():
        return sum(float(cross_entropy(model(b.inputs), b.target)) * b.size for b in batches) / images


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_physically_pruned_network(kind, trained, digits) -> None:
    batches = collate(draw(digits.train, 150, seed=0), 64)
    evaluator = KINDS[kind](trained.graph, batches)
    assert evaluator.full_loss() == pytest.approx(physical(trained.graph, batches, {}), rel=1e-4)
    for kept in selections(trained.graph):
        assert evaluator.loss(kept) == pytest.approx(physical(trained.graph, batches, kept), rel=1e-4)
    if kind.startswith("zero"):
        assert evaluator.work.sliced == 0


@pytest.mark.parametrize("kind", KINDS)
def test_one_selection_leaves_no_trace_in_the_next(kind, plain, digits) -> None:
    batches = collate(draw(digits.train, 64, seed=0), 64)
    first, second = selections(plain.graph, 2)
    alone = KINDS[kind](plain.graph, batches).loss(second)
    evaluator = KINDS[kind](plain.graph, batches)
    evaluator.loss(first)
    evaluator.full_loss()
    assert evaluator.loss(second) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_not_touched(kind, plain, digits) -> None:
    plain.model.train()
    before = copy.deepcopy(plain.model.state_dict())
    evaluator = KINDS[kind](plain.graph, collate(draw(digits.train, 64, seed=0), 64))
    for kept in selections(plain.graph):
        evaluator.loss(kept)
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    assert plain.model.training
    plain.model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_selections_are_computed_once_however_they_are_written(kind, plain, digits) -> None:
    evaluator = KINDS[kind](plain.graph, collate(draw(digits.train, 64, seed=0), 64))
    kept = next(selections(plain.graph))
    named = {group.name: units.tolist() for group, units in zip(plain.graph.groups, kept, strict=True)}
    assert evaluator.loss(kept) == evaluator.loss([units.copy() for units in kept]) == evaluator.loss(named)
    assert (evaluator.work.evaluations, evaluator.work.hits) == (1, 2)
    smaller = [kept[0][:-1] if len(kept[0]) > 1 else np.arange(2), *kept[1:]]
    evaluator.loss(smaller)
    assert evaluator.work.evaluations == 2


def test_losses_that_are_not_finite_count_as_infinite(plain, digits) -> None:
    batches = collate(draw(digits.train, 64, seed=0), 64)
    evaluator = SlicingEvaluator(plain.graph, batches, lambda output, target: output.sum() * math.nan)
    assert evaluator.full_loss() == math.inf


class Normed(nn.Module):
    """A group norm between convolutions: removing a channel changes the others' statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(1, 8)
        self.conv2, self.head = nn.Conv2d(8, 12, 3, padding=1), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv1(x) + 1))
        return self.head(torch.relu(self.conv2(x)).mean((2, 3)))


def test_mixed_groups_are_sliced_and_others_silenced(digits) -> None:
    graph = lcprune.trace(Normed(), digits.example)
    assert graph.mixing == {"conv1"}
    batches = collate(draw(digits.train, 64, seed=0), 64)
    evaluator = ZeroingEvaluator(graph, batches, cross_entropy)
    for kept, sliced in (
        ({"conv2": np.arange(5)}, 0),
        ({"conv1": np.arange(0, 8, 2), "conv2": np.arange(5)}, 1),
    ):
        assert evaluator.loss(kept) == pytest.approx(physical(graph, batches, kept), rel=1e-4)
        assert evaluator.work.sliced == sliced


def test_silence_that_is_not_removal_is_noticed(digits, caplog) -> None:
    graph = lcprune.trace(Normed(), digits.example)
    unaware = replace(graph, mixing=frozenset())
    batches = collate(draw(digits.train, 64, seed=0), 64)
    evaluator = ZeroingEvaluator(unaware, batches, cross_entropy)
    assert "smaller networks" in caplog.text
    kept = {"conv1": np.arange(0, 8, 2)}
    assert evaluator.loss(kept) == pytest.approx(physical(graph, batches, kept), rel=1e-4)


def test_convolutions_are_run_together_with_what_follows(trained, digits) -> None:
    batches = collate(draw(digits.train, 150, seed=0), 64)
    evaluator = ZeroingEvaluator(trained.graph, batches, cross_entropy, fuse=True)
    evaluator.full_loss()
    # Per recorded shape (a probe, whole batches, the rest): every convolution without groups.
    convolutions = [module for module in trained.model.modules() if isinstance(module, nn.Conv2d)]
    expected = sum(module.groups == 1 for module in convolutions)
    assert evaluator.forward.replaced == 3 * expected
    for recorded in evaluator.forward._recorded.values():
        targets = [node.target for node in recorded.graph.nodes]
        if trained.name in ("plain", "residual"):  # elsewhere, some activations stand alone
            assert torch.ops.aten.relu.default not in targets and torch.ops.aten.add.Tensor not in targets


@pytest.mark.cpu_bf16
@pytest.mark.parametrize("kind", [ZeroingEvaluator, SlicingEvaluator])
def test_bf16_ranks_like_fp32_and_can_be_made_exact(kind, plain, digits) -> None:
    batches = collate(draw(digits.train, 150, seed=0), 64)
    evaluator = kind(plain.graph, batches, cross_entropy, precision="bf16")
    exact = evaluator.exactly()
    assert exact.precision == "fp32"
    for kept in selections(plain.graph):
        assert evaluator.loss(kept) == pytest.approx(physical(plain.graph, batches, kept), rel=0.05)
        assert exact.loss(kept) == pytest.approx(physical(plain.graph, batches, kept), rel=1e-4)


class Remembers(nn.Module):
    """Keeps something on itself while it runs: two threads must not share it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept_for_later = x.mean((1, 2, 3))
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.head(x.mean((2, 3))) * self.kept_for_later[:, None]


def test_cores_share_batches_but_no_module(digits, monkeypatch) -> None:
    graph = lcprune.trace(Remembers(), digits.example)
    batches = collate(draw(digits.train, 300, seed=0), 16)
    threads = torch.get_num_threads()
    alone = SlicingEvaluator(graph, batches, cross_entropy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    shared = SlicingEvaluator(graph, batches, cross_entropy)
    monkeypatch.undo()
    assert shared.teams == 3 and torch.get_num_threads() == threads
    for kept in selections(graph):
        assert shared.loss(kept) == pytest.approx(physical(graph, batches, kept), rel=1e-4)
        assert shared.loss(kept) == pytest.approx(alone.loss(kept), rel=1e-12)


def test_what_a_fused_network_cannot_hold_is_judged_by_a_smaller_one(plain, digits) -> None:
    batches = collate(draw(digits.train, 64, seed=0), 64)
    evaluator = ZeroingEvaluator(plain.graph, batches, cross_entropy, fuse=True)
    evaluator.forward = lambda inputs: torch.full((len(inputs), 10), math.inf)
    kept = next(selections(plain.graph))
    assert evaluator.loss(kept) == pytest.approx(physical(plain.graph, batches, kept), rel=1e-4)
    assert evaluator.work.sliced == 1


def test_nothing_is_rebuilt_or_moved_between_candidates(plain, digits) -> None:
    evaluator = ZeroingEvaluator(plain.graph, collate(draw(digits.train, 64, seed=0), 64), cross_entropy)
    where = [parameter.data_ptr() for parameter in evaluator.model.parameters()]
    for kept in selections(plain.graph):
        evaluator.loss(kept)
    assert [parameter.data_ptr() for parameter in evaluator.model.parameters()] == where


def test_the_evaluator_fits_device_and_search(plain, digits) -> None:
    samples = draw(digits.train, 64, seed=0)

    def made(**settings):
        return make_evaluator(plain.graph, samples, Evaluation(**settings))

    assert isinstance(made(), SlicingEvaluator)  # on a CPU fewer multiply-adds are fewer seconds
    assert isinstance(made(evaluator="zero"), ZeroingEvaluator)
    # What the user prepares has to be a network of its own.
    assert isinstance(made(evaluator="zero", prepare=lambda model, batches: None), SlicingEvaluator)
    assert isinstance(made(evaluator="zero", after="statistics"), ZeroingEvaluator)
    assert made(evaluator="zero", after="cut").preparation is None
    assert [batch.size for batch in made(after="cut", batch_size=40).batches] == [40, 24]
    judging = made(batch_size=20)  # the other half repairs
    assert [batch.size for batch in judging.batches] == [20, 12]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_evaluator_on_a_gpu_is_fused_with_channels_last(precision, plain, digits) -> None:
    graph = lcprune.trace(copy.deepcopy(plain.model).cuda(), digits.example.cuda())
    evaluator = make_evaluator(graph, draw(digits.train, 64, seed=0), Evaluation(precision=precision))
    assert isinstance(evaluator, ZeroingEvaluator) and evaluator.forward is not evaluator.model
    assert evaluator.model[1][0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("tf32", 1e-2), ("bf16", 5e-2)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_the_contract_holds_on_a_gpu(precision, tolerance, channels_last, fuse, trained, digits) -> None:
    model = copy.deepcopy(trained.model).cuda()
    graph = lcprune.trace(model, digits.example.cuda())
    batches = collate(draw(digits.train, 150, seed=0), 64, "cuda")
    evaluator = ZeroingEvaluator(
        graph, batches, cross_entropy, precision=precision, channels_last=channels_last, fuse=fuse
    )
    reference = SlicingEvaluator(graph, batches, cross_entropy, fold=False)
    for kept in [[np.arange(group.size) for group in graph.groups], *selections(graph)]:
        assert evaluator.loss(kept) == pytest.approx(reference.loss(kept), rel=tolerance)
    assert evaluator.work.captures == 1 and evaluator.work.sliced == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_is_allocated_between_candidates_on_a_gpu(plain, digits) -> None:
    model = copy.deepcopy(plain.model).cuda()
    graph = lcprune.trace(model, digits.example.cuda())
    batches = collate(draw(digits.train, 150, seed=0), 64, "cuda")
    evaluator = ZeroingEvaluator(graph, batches, cross_entropy)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for kept in selections(graph, 20):
        evaluator.loss(kept)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert evaluator.work.captures == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loss_that_cannot_be_captured_still_counts_on_a_gpu(plain, digits) -> None:
    model = copy.deepcopy(plain.model).cuda()
    graph = lcprune.trace(model, digits.example.cuda())
    batches = collate(draw(digits.train, 150, seed=0), 64, "cuda")

    def waits(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, target) * (1.0 if output.sum().item() > -1e30 else 0.0)

    evaluator = ZeroingEvaluator(graph, batches, waits)
    reference = SlicingEvaluator(graph, batches, cross_entropy)
    kept = next(selections(graph))
    assert evaluator.work.captures == 0
    assert evaluator.loss(kept) == pytest.approx(reference.loss(kept), rel=1e-4)


class Particular(nn.Module):
    """A network that cannot be run in every layout and precision."""

    def __init__(self, view: bool = False, own_numbers: bool = False) -> None:
        super().__init__()
        self.view, self.own_numbers = view, own_numbers
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.classifier = nn.Linear(8 * 16, 5)

    def forward(self, x):
        x = x - torch.zeros(1, 3, 1, 1) if self.own_numbers else x  # float32, whatever the images are
        x = self.second(self.first(x).relu()).relu()
        return self.classifier(x.view(len(x), -1) if self.view else x.flatten(1))


@pytest.mark.parametrize("kind", ["slice", "zero"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.cpu_bf16)])
@pytest.mark.parametrize("trait", ["view", "own_numbers"])
def test_networks_that_do_not_run_in_every_layout_and_precision(trait, precision, kind, caplog) -> None:
    torch.manual_seed(0)
    graph = lcprune.trace(Particular(**{trait: True}), torch.zeros(2, 3, 4, 4))
    samples = [(torch.randn(3, 4, 4), torch.tensor(index % 5)) for index in range(20)]
    how = Evaluation(batch_size=10, precision=precision, evaluator=kind, after="cut")
    with caplog.at_level("WARNING", "lcprune"):
        evaluator = make_evaluator(graph, samples, how)
    exact = precision == "fp32" or trait == "own_numbers"
    assert evaluator.precision == ("fp32" if exact else "bf16")
    assert ("does not run in bf16" in caplog.text) == (precision == "bf16" and exact)
    for kept in selections(graph):
        expected = physical(graph, collate(samples, 10), kept)
        assert evaluator.loss(kept) == pytest.approx(expected, rel=1e-4 if exact else 2e-2)
