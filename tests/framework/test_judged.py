"""What candidates are judged by, if the user names no loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lcprune
from lcprune.evaluate import FromWhole
from lcprune.select import Limits
from lcprune.task import Task
from searching import searching, searching_many

FEW = {"pool": 4, "iterations": 8, "sample": 2, "images": 128}


def _losses(graph: Any, data: Any, **more: Any) -> list[float]:
    result = lcprune.prune(graph, macs="50%", progress=False, **searching(data, **FEW, **more))
    return [record.difference for record in result.history]


def _with_other_labels(data: Any) -> list[tuple[Tensor, Tensor]]:
    return [(images, (labels + 1) % 10) for images, labels in data]


def test_after_repair_labels_make_no_difference(plain: SimpleNamespace, digits: SimpleNamespace) -> None:
    data = list(digits.train)
    judged = _losses(plain.graph, data)
    assert judged == _losses(plain.graph, _with_other_labels(data))
    assert judged == _losses(plain.graph, [images for images, _ in data], loss_fn="divergence")


@pytest.mark.parametrize("more", [{"after": "cut"}, {"after": "statistics"}, {"loss_fn": nn.functional.cross_entropy}])
def test_elsewhere_they_count(plain: SimpleNamespace, digits: SimpleNamespace, more: dict[str, Any]) -> None:
    data = list(digits.train)
    assert _losses(plain.graph, data, **more) != _losses(plain.graph, _with_other_labels(data), **more)


def test_frontiers_show_the_loss_of_the_labels(plain: SimpleNamespace, digits: SimpleNamespace) -> None:
    data = list(digits.train)
    own = lcprune.pareto(plain.graph, macs=["50%"], progress=False, **searching_many(data, **FEW))
    other = lcprune.pareto(plain.graph, macs=["50%"], progress=False, **searching_many(_with_other_labels(data), **FEW))
    assert own.full_loss < 1 < other.full_loss
    assert own.points[0].plan.kept == other.points[0].plan.kept
    assert own.points[0].loss != other.points[0].loss


def test_what_gives_no_row_of_scores_is_judged_by_its_labels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()  # a label per pixel
    graph = lcprune.trace(model, torch.randn(1, 3, 8, 8))
    samples = [(torch.randn(3, 8, 8), torch.randint(4, (8, 8))) for _ in range(8)]
    task = Task(graph, Limits(macs=0.5), samples=samples)
    assert task.judged[1].loss_fn is None
    scores = nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    graph = lcprune.trace(scores, torch.randn(1, 3, 8, 8))
    labelled = [(image, torch.tensor(1)) for image, _ in samples]
    assert isinstance(Task(graph, Limits(macs=0.5), samples=labelled).judged[1].loss_fn, FromWhole)
