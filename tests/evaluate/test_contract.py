"""The contract of every evaluator: its loss is the physically pruned network's loss."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.evaluate import SlicingEvaluator, ZeroingEvaluator, collate, draw, make_evaluator
from lcprune.evaluate.zeroing import prefers_channels_last
from lcprune.search import Search

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
    unaware = type(graph)(
        graph.model,
        graph.example_inputs,
        graph.groups,
        graph.cost,
        graph.frozen,
        frozenset(),
        graph.structure,
    )
    batches = collate(draw(digits.train, 64, seed=0), 64)
    evaluator = ZeroingEvaluator(unaware, batches, cross_entropy)
    assert "smaller networks" in caplog.text
    kept = {"conv1": np.arange(0, 8, 2)}
    assert evaluator.loss(kept) == pytest.approx(physical(graph, batches, kept), rel=1e-4)


def test_convolutions_are_run_together_with_what_follows(trained, digits) -> None:
    batches = collate(draw(digits.train, 150, seed=0), 64)
    evaluator = ZeroingEvaluator(trained.graph, batches, cross_entropy, fuse=True)
    evaluator.full_loss()
    # Per recorded shape (a probe, whole batches, the rest): convolutions with a ReLU behind them, or behind
    # an addition. Dense layers have theirs before.
    expected = {"plain": 6, "residual": 13, "separable": 12, "dense": 0}
    assert evaluator.forward.replaced == 3 * expected[trained.name]


def test_bf16_ranks_like_fp32(plain, digits) -> None:
    batches = collate(draw(digits.train, 150, seed=0), 64)
    evaluator = ZeroingEvaluator(plain.graph, batches, cross_entropy, precision="bf16")
    for kept in selections(plain.graph):
        assert evaluator.loss(kept) == pytest.approx(physical(plain.graph, batches, kept), rel=0.05)


def test_nothing_is_rebuilt_or_moved_between_candidates(plain, digits) -> None:
    evaluator = ZeroingEvaluator(plain.graph, collate(draw(digits.train, 64, seed=0), 64), cross_entropy)
    where = [parameter.data_ptr() for parameter in evaluator.model.parameters()]
    for kept in selections(plain.graph):
        evaluator.loss(kept)
    assert [parameter.data_ptr() for parameter in evaluator.model.parameters()] == where


def test_the_evaluator_fits_device_and_search(plain, digits) -> None:
    samples = draw(digits.train, 64, seed=0)

    def made(**settings):
        return make_evaluator(plain.graph, samples, cross_entropy, Search(**settings))

    assert isinstance(made(), SlicingEvaluator)  # on a CPU fewer multiply-adds are fewer seconds
    assert isinstance(made(evaluator="zero"), ZeroingEvaluator)
    # What is changed before it is judged has to be a network of its own.
    assert isinstance(made(evaluator="zero", recalibrate=True), SlicingEvaluator)
    assert [batch.size for batch in made(batch_size=40).batches] == [40, 24]


@pytest.mark.parametrize(
    ("device", "precision", "last"),
    [("cuda", "bf16", True), ("cuda", "fp32", False), ("cuda", "tf32", False), ("cpu", "bf16", False)],
)
def test_the_layout_is_the_faster_one(device, precision, last) -> None:
    assert prefers_channels_last(torch.device(device), precision) is last


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "last"), [("fp32", False), ("bf16", True)])
def test_the_evaluator_on_a_gpu_has_the_faster_layout(precision, last, plain, digits) -> None:
    graph = lcprune.trace(copy.deepcopy(plain.model).cuda(), digits.example.cuda())
    evaluator = make_evaluator(graph, draw(digits.train, 64, seed=0), cross_entropy, Search(precision=precision))
    assert isinstance(evaluator, ZeroingEvaluator) and evaluator.channels_last is last
    weight = evaluator.model[1][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is last


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
