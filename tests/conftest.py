"""What every test relies on: one thread, the same random numbers in every run, and trained digits networks."""

from __future__ import annotations

import functools
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lcprune
from lcprune import bf16

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import digit_networks  # noqa: E402

# The tests run in several processes; with one thread each they do not fight over the cores, and sums come out
# in the same order everywhere.
torch.set_num_threads(1)

# Files are shared out among the processes whole, so that what a file sets up is set up once. The longest begin.
LONGEST = (
    *("engine/test_deaths", "graph/test_graph_zoo", "engine/test_studies", "test_docs", "graph/test_graph_coverage"),
    *("baselines/test_conformance", "test_paper", "framework/test_prune", "cli/test_way_through"),
    *("evaluate/test_contract", "test_bf16", "engine/test_search", "graph/test_graph_odd_code"),
    *("cli/test_interruption", "search/test_resume", "repairs/test_repair", "tune/test_distributed", "tune/test_fleet"),
    "baselines/test_comparison",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (third-party code under test may draw from the global generator)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests measure in a cache of their own, and the same network once."""
    os.environ["LCPRUNE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _bf16_where_it_works(request: pytest.FixtureRequest, _own_cache: None) -> None:
    """Tests that compute in bf16 on the CPU are marked `cpu_bf16`: elsewhere they would end the process."""
    if request.node.get_closest_marker("cpu_bf16") and (why := bf16.trouble()):
        pytest.skip(why)


@pytest.fixture(scope="session")
def digits() -> SimpleNamespace:
    """Digits as batches: `train`, `held_out`, and an `example` input."""
    images, labels, held_images, held_labels = digit_networks.digits()
    return SimpleNamespace(
        train=digit_networks.batches(images, labels, 64),
        held_out=digit_networks.batches(held_images, held_labels, 64),
        example=images[:2],
        images=images,
        labels=labels,
    )


@pytest.fixture(scope="session", params=list(digit_networks.NETWORKS))
def trained(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each of the four networks, trained a little, with its graph."""
    return _train(request.param)


@pytest.fixture(scope="session")
def plain() -> SimpleNamespace:
    """The plain network alone, for tests in which the kind of network does not matter."""
    return _train("plain")


@functools.cache
def _train(name: str) -> SimpleNamespace:
    images, labels, _, _ = digit_networks.digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = digit_networks.NETWORKS[name](width=8)
        digit_networks.train(model, images, labels, epochs=2, seed=0)
    return SimpleNamespace(name=name, model=model, graph=lcprune.trace(model, images[:2]))
