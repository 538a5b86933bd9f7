"""New batch-norm statistics: those of all images, told from a few."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_networks import settled
from torch import Tensor, nn

import lcprune
from lcprune.batches import Batch
from lcprune.repairs.statistics import Renewal, renew_statistics, statistics_of


def network(shared: bool) -> nn.Sequential:
    """Norms behind convolutions and a linear layer; one may run twice."""
    norm = nn.BatchNorm2d(12)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 12, 3), norm, nn.ReLU()),
        *(nn.Conv2d(12, 12, 1), norm if shared else nn.BatchNorm2d(12), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)),
    )


def pictures(count: int, seed: int) -> Tensor:
    """Images that differ in brightness and contrast, as photographs do."""
    generator = torch.Generator().manual_seed(seed)
    contrast = (0.7 * torch.randn(count, 1, 1, 1, generator=generator)).exp()
    return torch.randn(count, 3, 8, 8, generator=generator) * contrast + torch.randn(
        count, 3, 1, 1, generator=generator
    )


def batches(images: Tensor, size: int = 1000) -> list[Batch]:
    return [Batch(part, (), len(part)) for part in images.split(size)]


def numbers(model: nn.Module) -> list[Tensor]:
    return [t.clone() for norm in statistics_of(model).values() for t in (norm.running_mean, norm.running_var)]


@pytest.fixture
def whole(shared: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = settled(network(shared))
    renew_statistics(model, batches(pictures(4000, seed=1)))
    return model.eval()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_nothing_cut_nothing_changed(whole: nn.Sequential, count: int) -> None:
    plan = lcprune.trace(whole, pictures(2, 0)).plan({})
    small = plan.apply(whole)
    Renewal(whole, batches(pictures(count, seed=2), 40))(small, plan)
    for new, old in zip(numbers(small), numbers(whole), strict=True):
        assert torch.allclose(new, old, rtol=1e-4, atol=1e-5 * float(old.abs().max()))


@pytest.mark.parametrize("shared", [False, True])
def test_channels_that_a_few_images_do_not_move_keep_their_variance(whole: nn.Sequential) -> None:
    """Of images that are all alike, nothing can be learned: above all not that other images have no variance."""
    graph = lcprune.trace(whole, pictures(2, 0))
    plan = graph.plan([np.arange(group.size // 2, group.size) for group in graph.groups])
    small = plan.apply(whole)
    Renewal(whole, batches(torch.zeros(5, 3, 8, 8)))(small, plan)
    for new, old in zip(*(statistics_of(net).values() for net in (small, plan.apply(whole))), strict=True):
        assert torch.isfinite(new.running_mean).all() and torch.isfinite(new.running_var).all()
        assert (new.running_var > 1e-3 * old.running_var).all()


@pytest.mark.parametrize("shared", [False])
def test_own_statistics_are_those_of_the_images(whole: nn.Sequential) -> None:
    images = pictures(64, seed=2)
    graph = lcprune.trace(whole, images[:2])
    plan = graph.plan([np.arange(0, group.size, 2) for group in graph.groups])
    own, other, following = plan.apply(whole), plan.apply(whole), plan.apply(whole)
    renewal = Renewal(whole, batches(images))
    renewal(own, plan, follow=False)
    renewal(following, plan)
    renew_statistics(other, batches(images))  # PyTorch's own variances divide by one less
    for found, known in zip(numbers(own), numbers(other), strict=True):
        assert torch.allclose(found, known, rtol=0.02, atol=1e-3 * float(known.abs().max()))
    assert not any(torch.allclose(a, b) for a, b in zip(numbers(own), numbers(following), strict=True))
