"""Random operators in a comparison of two networks of different widths: the same number in every place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lcprune.graph.rules import Call


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python for a block, then put them back where they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` also wakes GPUs that nobody uses
        if gpus:
            torch.cuda.manual_seed_all(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def without_chance(call: Call, out: Any, uniform: float, normal: float) -> None:
    """Overwrite what a random operator gave by something that does not depend on how many elements there are.

    `uniform` lies between 0 and 1; `normal` was drawn from the normal distribution.
    """
    name = call.name.removeprefix("aten::").removesuffix("_")
    if name in ("rand", "rand_like"):
        out.fill_(uniform)
    elif name in ("randn", "randn_like"):
        out.fill_(normal)
    elif name == "uniform":
        low, high = call.arg(1, "from", 0.0), call.arg(2, "to", 1.0)
        out.fill_(low + (high - low) * uniform)
    elif name in ("normal", "normal_functional"):
        first = 1 if call.inplace or name == "normal_functional" else 0
        mean, deviation = call.arg(first, "mean", 0.0), call.arg(first + 1, "std", 1.0)
        out.copy_(torch.as_tensor(mean + deviation * normal).expand_as(out))
    elif name == "bernoulli":
        chance = call.arg(1, "p", 0.5) if call.inplace or len(call.args) > 1 else call.input
        out.copy_(torch.as_tensor(chance).gt(0).expand_as(out))  # kept, unless it never is
    elif name == "native_dropout":
        kept, mask = out
        share = 1.0 - float(call.args[1])
        kept.copy_(call.input / share if share > 0 else torch.zeros_like(call.input))
        mask.fill_(share > 0)
