"""One small Ray on this machine for all tests of a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcprune.engine import RayEngine

sys.path.insert(0, str(Path(__file__).parent))  # engine_helpers
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray's 15 would starve workers beside other tests


@pytest.fixture(scope="session")
def _end_of_ray() -> Iterator[None]:
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def ray(_end_of_ray) -> Any:
    """Ray with two cores; started once, and again where another test has ended it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install lcprune[ray]")
    if not ray.is_initialized():
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=150 * 2**20)
    return ray


@pytest.fixture(scope="module")
def two(ray) -> Iterator[RayEngine]:
    """Two workers that stay for the whole module."""
    with RayEngine(workers=2) as engine:
        yield engine
