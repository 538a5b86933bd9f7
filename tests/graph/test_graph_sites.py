"""Places in the code are told apart, and found again; the rest of the process does not matter to a pass."""

from __future__ import annotations

import threading

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import lcprune
from lcprune.graph.cuts import CUTS
from lcprune.graph.discover import Discover
from lcprune.graph.reads import reads


class Slices(nn.Module):
    """Two slices on one line, and one in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        pair = y[:, :2].relu() + y[:, 2:4].relu()
        return sum((y[:, 4:6].relu() for _ in range(20)), pair)


def test_every_pass_finds_the_same_places() -> None:
    def places() -> tuple[list[object], set[object]]:
        run = Discover(Slices())
        run.forward((torch.randn(1, 3, 4, 4),))
        return [part.site for part in run.parts.values()], {site for site, *_ in run.uses}

    (taken, used), again = places(), places()
    assert (taken, used) == again
    assert len(set(taken)) == len(used) == 3  # two on one line, and one for all rounds of the loop


class Heads(nn.Module):
    """Attention that takes its parts by position and divides by a number that follows from their size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.unread = size, size
        self.qkv, self.out = nn.Linear(6, 3 * 2 * size), nn.Linear(2 * size, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), -1, 3, 2, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_a_block_may_become_as_wide_as_another_one() -> None:
    blocks = nn.Sequential(Heads(4), Heads(7))
    graph = lcprune.trace(blocks, torch.randn(2, 5, 6))
    assert {"0.qkv": 4, "1.qkv": 7}.items() <= {group.name: group.size for group in graph.groups}.items()
    kept = [np.arange(4 if group.name == "1.qkv" else group.size) for group in graph.groups]
    graph.structure.order(kept)  # raises where other channels would be taken
    assert {tie.attribute for tie in graph.structure.ties} == {"size"}


def test_reads_names_what_is_read() -> None:
    block = Heads(4)
    with reads({"block": block}) as found:
        assert isinstance(block, Heads)
        block(torch.randn(2, 5, 6))
    assert ("block", "size") in found and ("block", "unread") not in found
    assert type(block) is Heads


def test_reads_makes_no_class_where_classes_are_registered() -> None:
    class Registered(Heads):
        def __init_subclass__(cls) -> None:
            raise AssertionError("registered")

    with reads({"": Registered(4)}) as found:
        assert {("", "size"), ("", "unread")} <= found


def test_trace_hears_no_other_thread() -> None:
    """Another thread runs its own networks all the while, and no hook is left for modules of the whole process."""
    busy, stop = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with torch.no_grad():
                busy(torch.randn(1, 3, 8, 8))

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(20):
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
            graph = lcprune.trace(model, torch.randn(1, 3, 8, 8))
            assert [group.name for group in graph.groups] == ["0"] and dict(graph.norms) == {"0": "1"}
    finally:
        stop.set()
        other.join()
    assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks


class Inferring(nn.Module):
    """What inference mode hands on whole: depthwise convolutions, batch norm, flattening, linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.deep, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.adaptive_avg_pool2d(self.norm(self.deep(self.conv(x))).relu(), 2)
        return self.last(self.first(y.flatten(2).transpose(1, 2)).relu()).mean(1)


def test_inference_mode_changes_nothing() -> None:
    class Decorated(Inferring):
        forward = torch.inference_mode()(Inferring.forward)

    x = torch.randn(2, 3, 8, 8)
    plain = lcprune.trace(Inferring().eval(), x)
    with torch.inference_mode():
        inside = lcprune.trace(Inferring().eval(), x)
    for graph in (inside, lcprune.trace(Decorated().eval(), x)):
        assert graph.macs == plain.macs and graph.norms == plain.norms == {"deep": "norm"}
        assert [(g.name, g.size) for g in graph.groups] == [("conv", 8), ("first", 12)]
        assert graph.frozen == plain.frozen and graph.frozen.keys() == {"last"}
        kept = {"conv": np.arange(0, 8, 2), "first": np.arange(5)}
        assert lcprune.verify(graph.model, graph.plan(kept), x).ok


def test_what_is_cut_inside_inference_mode_can_be_trained() -> None:
    x = torch.randn(8, 3, 8, 8)
    model = Inferring().eval()
    with torch.inference_mode():
        result = lcprune.prune(model, x, macs="60%", method="naive", data=[x], progress=False)
        fresh = result.plan.apply(model)
        again = lcprune.repair(model, result.plan, [x], progress=False)
        front = lcprune.pareto(model, x, macs=["80%", "60%"], methods=["naive"], data=[x], progress=False)
    for network in (result.model, fresh, again, *(point.model for point in front.points)):
        network.train()(x).sum().backward()


def test_groups_of_one_size_are_cut_to_different_numbers() -> None:
    """Otherwise nobody sees that code takes the length of one for that of another."""
    model = nn.Sequential(*(nn.Conv2d(3 if i == 0 else 6, 6, 1) for i in range(5)))
    groups = lcprune.trace(model, torch.randn(1, 3, 4, 4)).groups
    assert len(groups) == 4
    for cut in (CUTS[0], CUTS[-1]):
        counts = [len(kept) for kept in cut(groups) or []]
        assert sorted(counts) == [2, 3, 4, 5]
        fewer = cut(groups[1:]) or []  # one has frozen: hardly anything else changes
        assert sum(np.array_equal(*pair) for pair in zip(fewer, (cut(groups) or [])[1:], strict=True)) >= 1

    small = lcprune.trace(nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(5))), torch.randn(1, 4, 4, 4)).groups
    both = [tuple(map(len, own)) for own in zip(CUTS[0](small) or [], CUTS[-1](small) or [], strict=True)]
    assert sorted(both) == [(2, 2), (2, 3), (3, 2), (3, 3)]


def test_each_of_two_units_is_cut() -> None:
    groups = lcprune.trace(nn.Sequential(*(nn.Conv2d(2, 2, 1) for _ in range(9))), torch.randn(1, 2, 4, 4)).groups
    cuts = [cut(groups) or [np.arange(2)] * 8 for cut in CUTS]
    for kept in zip(*cuts, strict=True):
        assert {tuple(own) for own in kept} >= {(0,), (1,)}
