"""Networks that look at their values: boxes chosen by score, masks, loops, branches. They are cut all the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lcprune
from lcprune.vision import import_torchvision


class Detector(nn.Module):
    """Two stages: cells are chosen by score, thinned out, pooled, sorted by size, and read by a second head.

    Args:
        threshold: the least score of a cell.
    """

    def __init__(self, threshold: float = -math.inf) -> None:
        super().__init__()
        self.threshold = threshold
        self.stem, self.norm = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.body = nn.Conv2d(12, 16, 3, stride=2, padding=1)
        self.score, self.size = nn.Conv2d(16, 2, 1), nn.Conv2d(16, 1, 1)
        self.hidden, self.classes = nn.Linear(16, 10), nn.Linear(10, 5)
        nn.init.normal_(self.norm.bias)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        features = self.body(self.norm(self.stem(torch.stack(images))).relu()).relu()
        scores, sizes = self.score(features).flatten(1), self.size(features).flatten(1)
        return [self.boxes(*one) for one in zip(features.flatten(2), scores, sizes, strict=True)]

    def boxes(self, features: Tensor, scores: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        best, cells = scores.topk(10)
        cells = cells[best > self.threshold] % features.shape[1]
        cells = cells[suppress(cells)]
        large = sizes[cells] > sizes.mean()
        pooled = torch.zeros(len(cells), features.shape[0], dtype=features.dtype, device=features.device)
        for of_this_size, gain in ((large, 1.0), (~large, 2.0)):
            places = torch.where(of_this_size)[0]
            pooled[places] = gain * features.t()[cells[places]]
        classes = self.classes(self.hidden(pooled).relu())
        return {"cells": cells, "classes": classes, "largest": classes.amax(1) if len(cells) else classes[:, 0]}


def suppress(cells: Tensor) -> Tensor:
    """Drop cells that lie next to a better one, as non-maximum suppression does; otherwise on a GPU than on a CPU."""
    if cells.device.type == "cpu" and len(cells) > 4:
        near = (cells[:, None] - cells[None]).abs().le(1).triu(1)
        return ~near.any(0)
    kept: list[int] = []
    for place in range(len(cells)):
        if all(abs(int(cells[place]) - int(cells[other])) > 1 for other in kept):
            kept.append(place)
    return torch.tensor(kept, dtype=torch.int64, device=cells.device)


def images(count: int = 2) -> tuple[list[Tensor]]:
    return ([torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(n)) for n in range(count)],)


def detector(threshold: float = -math.inf) -> Detector:
    torch.manual_seed(0)
    return Detector(threshold).eval()


@functools.cache
def half_of_a_detector() -> lcprune.Plan:
    graph = lcprune.trace(detector(0.1), images())
    return graph.plan({group.name: range(0, group.size, 2) for group in graph.groups})


@pytest.mark.parametrize("threshold", [-math.inf, 0.1, math.inf])  # all, some, no box
def test_a_detector_is_cut_before_and_behind_its_boxes(threshold: float) -> None:
    net = detector(threshold)
    graph = lcprune.trace(net, images())
    assert [group.name for group in graph.groups] == ["stem", "body", "hidden"], graph.frozen
    assert next(graph.structure.skeleton.parameters()).is_meta, "trials must not run on data"
    result = lcprune.prune(graph, macs=0.4, method="naive", repair="none")
    verification = lcprune.verify(net, result.plan, images())
    assert verification.ok, str(verification)
    assert ("output[0]['classes']" in verification.silent) == (threshold == math.inf)
    sum(found["classes"].square().sum() for found in result.model.train()(*images())).backward()


def test_costs_are_per_image_and_as_torch_counts_them() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net = detector(0.1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(*images())
    assert lcprune.trace(net, images()).macs == round(counter.get_total_flops() / 2 / 2)


def test_other_boxes_after_a_cut_do_not_matter() -> None:
    """The cut network finds another number of boxes than the whole one: no reason to freeze anything."""
    net, plan = detector(0.1), half_of_a_detector()
    assert len(plan.apply(net)(*images())[0]["cells"]) != len(net(*images())[0]["cells"])


@pytest.mark.parametrize("layer", ["stem", "score", "size", "hidden"])
def test_verify_sees_a_wrong_cut_that_changes_decisions_alone(layer: str) -> None:
    net, plan = detector(0.1), half_of_a_detector()
    wrong = plan.apply(net)
    weight = wrong.get_submodule(layer).weight
    with torch.no_grad():
        weight[:, :2] = weight[:, :2].flip(1).clone()
    assert not lcprune.verify(net, plan, images(), wrong).ok


class CoinToss(nn.Module):
    """The same number computed in two ways: which is larger is a matter of rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Conv2d(3, 16, 3), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu().movedim(1, -1)
        other = (y.unsqueeze(-2) * self.head.weight).sum(-1) + self.head.bias
        return torch.where(self.head(y) > other, 1.0, 2.0)


def test_verify_has_both_networks_decide_alike() -> None:
    torch.manual_seed(0)
    net, x = CoinToss().eval(), torch.randn(2, 3, 12, 12)
    plan = lcprune.trace(net, x).plan({"a": range(1, 16, 2)})
    verification = lcprune.verify(net, plan, x)
    assert verification.ok and verification.max_error < 1e-12, str(verification)


class Between(nn.Module):
    """Code between two layers."""

    def __init__(self, code: Callable[[Between, Tensor], Tensor]) -> None:
        super().__init__()
        self.code, self.a, self.b = code, nn.Conv2d(3, 8, 3), nn.LazyConv2d(4, 1)
        self.other = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self, x))


def _size_through_a_tensor(net: Between, x: Tensor) -> Tensor:
    y = net.a(x)
    width = int(torch.tensor(y.shape).prod()) // (y.shape[0] * y.shape[2] * y.shape[3])
    return y.flatten(1).view(-1, width, *y.shape[2:]) if y.abs().max() > 0 else y


def _written_beside_a_view(net: Between, x: Tensor) -> Tensor:
    y, out = net.a(x), torch.zeros(len(x), 8, 6, 6, dtype=x.dtype)
    half = out[:, 4:]
    out[torch.where(y.mean((1, 2, 3)) < 9)[0]] = y
    return half


def _written_twice(net: Between, x: Tensor) -> Tensor:
    y, z = net.a(x), net.other(x)
    out = torch.zeros_like(y)
    far = y.mean((1, 2, 3)) > y.mean()
    out[far], out[~far] = y[far], z[~far]
    return out


def _a_number_per_sample(net: Between, x: Tensor) -> Tensor:
    y, dark = net.a(x).movedim(1, -1).clone(), x.mean((1, 2, 3)) < 0
    y[dark] = x.mean((1, 2, 3))[dark][:, None, None, None]
    return y.movedim(-1, 1)


def _as_many_as_are_positive(net: Between, x: Tensor) -> Tensor:
    y = net.a(x)
    count = int((y.amax((0, 2, 3)) > -99).sum())
    return y.reshape(-1, count, 6, 6)


def _chosen_by_mask(net: Between, x: Tensor) -> Tensor:
    y = net.a(x)
    return y[:, :, x[0, 0, 1:-1, 1:-1] > 0][..., None]


CODE: dict[str, tuple[Callable[[Between, Tensor], Tensor], bool]] = {
    "a size through a tensor": (_size_through_a_tensor, True),
    "written beside a view": (_written_beside_a_view, False),
    "written twice": (_written_twice, True),
    "as many as are positive": (_as_many_as_are_positive, False),
    "chosen by mask": (_chosen_by_mask, True),
    "a branch": (lambda net, x: net.a(x) if x.sum() > -1e9 else net.other(x), True),
    "a value on the CPU": (lambda net, x: net.a(x) * x.mean().to("cpu").item(), True),
    "a number per sample": (_a_number_per_sample, True),
    "a value in a list": (lambda net, x: net.a(x) * x.mean((1, 2, 3)).tolist()[0], True),
}


@pytest.mark.parametrize("name", CODE)
def test_cut_or_frozen_but_never_wrong(name: str) -> None:
    code, prunable = CODE[name]
    torch.manual_seed(0)
    net, x = Between(code).eval(), torch.randn(2, 3, 8, 8)
    net(x)
    graph = lcprune.trace(net, x)
    assert any(group.name == "a" for group in graph.groups) == prunable, graph.explain()
    for kept in ([0, 2, 5], [1, 2, 3, 6, 7]):
        plan = graph.plan({group.name: kept for group in graph.groups})
        verification = lcprune.verify(net, plan, x)
        assert verification.ok, str(verification)


FEW = {"rpn_post_nms_top_n_test": 8, "rpn_post_nms_top_n_train": 8, "box_detections_per_img": 4}
DETECTORS: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": FEW,
    "maskrcnn_resnet50_fpn": {**FEW, "box_score_thresh": 0.0},
    "fcos_resnet50_fpn": {},
}


@pytest.mark.parametrize("name", DETECTORS)
def test_torchvisions_detectors(name: str) -> None:
    vision = import_torchvision()
    if not vision.extension._has_ops():
        pytest.skip("torchvision's compiled operators do not load here")
    torch.manual_seed(0)
    net = vision.models.get_model(
        name, weights=None, weights_backbone=None, min_size=64, max_size=64, **DETECTORS[name]
    )
    net.eval()
    example = ([torch.rand(3, 64, 64)],)
    result = lcprune.prune(net, example, macs=0.5, method="naive", repair="none")  # verified on the way
    assert result.plan.macs <= 0.5 * result.plan.original_macs
    target = {"boxes": torch.tensor([[5.0, 5.0, 50.0, 40.0]]), "labels": torch.tensor([1])}
    target["masks"] = torch.ones(1, 64, 64, dtype=torch.uint8)
    losses = result.model.train()([*example[0], *example[0]], [target, target])
    sum(losses.values()).backward()
