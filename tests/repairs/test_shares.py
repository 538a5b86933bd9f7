"""In which order units go, and what their readers lose: closed forms against least squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lcprune
from lcprune.batches import Batch
from lcprune.evaluate import measured
from lcprune.repairs.shares import least_lost, lost_shares


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(60, 3, 5, 5, dtype=torch.float64)


@pytest.fixture
def network() -> nn.Module:
    """Eight channels that one layer reads, place by place."""
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(36, 2)
    return nn.Sequential(*layers).double().eval()


def lost_with(network: nn.Module, images: torch.Tensor, kept: list[int]) -> float:
    """The squared error of the reader's outputs, when the kept channels predict them as well as they can."""
    with torch.no_grad():
        read = network[:2](images).movedim(1, -1).flatten(0, 2)
        wanted = read @ network[2].weight[:, :, 0, 0].T
        given = torch.cat([read[:, kept], torch.ones(len(read), 1, dtype=torch.float64)], 1)
        return float((wanted - given @ torch.linalg.lstsq(given, wanted).solution).square().sum(1).mean())


def test_the_unit_that_goes_next_is_the_one_that_costs_least(network: nn.Module, images: torch.Tensor) -> None:
    graph = lcprune.trace(network, images[:1])
    [order, shares] = least_lost(measured(graph, [Batch(images, (), 60)]), graph)[0]
    left = list(range(8))
    for unit in order.tolist():
        costs = {one: lost_with(network, images, [other for other in left if other != one]) for one in left}
        assert costs[unit] == pytest.approx(min(costs.values()), rel=1e-2)
        left.remove(unit)
    assert shares.sum() == pytest.approx(1) and (np.diff(shares) >= 0).all() and shares[0] > 0


def test_an_order_loses_what_least_squares_say(network: nn.Module, images: torch.Tensor) -> None:
    graph = lcprune.trace(network, images[:1])
    shares = lost_shares(measured(graph, [Batch(images, (), 60)]), graph, [np.arange(g.size) for g in graph.groups])[0]
    everything = lost_with(network, images, [])
    for count in range(8):
        kept = list(range(8 - count, 8))
        assert shares[count] == pytest.approx(lost_with(network, images, kept) / everything, rel=1e-2, abs=1e-4)
    assert shares[8] == 0


def test_what_others_can_rebuild_goes_first(network: nn.Module, images: torch.Tensor) -> None:
    with torch.no_grad():
        network[0].weight[5] = 2 * network[0].weight[1]  # the longer of the two, and one of them is enough
        network[0].bias[5] = 2 * network[0].bias[1]
    graph = lcprune.trace(network, images[:1])
    scores = lcprune.metrics.score(graph, "rebuilt", [(images, ())])[0]
    first, second = np.argsort(scores)[:2].tolist()
    assert first in (1, 5) and second not in (1, 5)
    assert scores[first] < 0.1 * scores[second]
    assert len(set(scores.tolist())) == 8


def test_where_nobody_was_measured_lengths_decide(images: torch.Tensor) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 2, 3)).double().eval()
    graph = lcprune.trace(network, images[:1])
    scores = lcprune.metrics.score(graph, "rebuilt", [(images, ())])
    lengths = lcprune.metrics.l2_normalised(lcprune.metrics.score(graph, "l2"))
    assert all(np.array_equal(*pair) for pair in zip(scores, lengths, strict=True))
