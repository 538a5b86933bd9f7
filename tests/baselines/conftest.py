"""Small trained digits networks for the tests of methods."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lcprune

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.insert(0, BENCHMARKS)

import digit_networks  # noqa: E402


@pytest.fixture(scope="session")
def digits() -> SimpleNamespace:
    """192 images in `batches`, and an `example` input."""
    images, labels, _, _ = digit_networks.digits()
    images, labels = images[:192], labels[:192]
    return SimpleNamespace(
        images=images, labels=labels, batches=digit_networks.batches(images, labels, 64), example=images[:2]
    )


@pytest.fixture(scope="session", params=["plain", "residual", "separable"])
def network(request: pytest.FixtureRequest, digits: SimpleNamespace) -> SimpleNamespace:
    """Networks whose groups are free, coupled by additions, and with depthwise riders."""
    return _trained(request.param, digits)


@pytest.fixture(scope="session")
def plain(digits: SimpleNamespace) -> SimpleNamespace:
    """The plain one alone."""
    return _trained("plain", digits)


def _trained(name: str, digits: SimpleNamespace) -> SimpleNamespace:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = digit_networks.NETWORKS[name](width=4)
        digit_networks.train(model, digits.images, digits.labels, epochs=6, seed=0)
    return SimpleNamespace(model=model, graph=lcprune.trace(model, digits.example))
