"""What every test relies on: one thread, and random numbers that are the same in every run."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

# The tests run in several processes; with one thread each they do not fight over the cores, and sums come out
# in the same order everywhere.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (third-party code under test may draw from the global generator)
    torch.manual_seed(0)
