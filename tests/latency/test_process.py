"""What measuring changes in the process: it has the effect that it is there for, and does not outlive it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from lcprune import latency
from lcprune.latency.process import many_compilations, no_garbage


@torch._dynamo.config.patch(recompile_limit=2)  # in place of 8: every network takes seconds to compile
def test_more_networks_of_one_class_are_compiled_than_dynamo_would_and_its_limit_is_as_before() -> None:
    torch._dynamo.reset()
    compile_, counters = latency.make_backend("compile", "cpu"), torch._dynamo.utils.counters
    counters.clear()
    with torch.inference_mode():
        nets = [(nn.Linear(width, 1).eval(), torch.ones(1, width)) for width in range(2, 6)]
        runs = [compile_.network(net, (x,)) for net, x in nets]
        assert counters["stats"]["unique_graphs"] == len(nets)
        for run, (net, x) in zip(runs, nets, strict=True):
            assert torch.allclose(run(), net(x))
        assert counters["stats"]["unique_graphs"] == len(nets), "later runs find what was compiled"
    assert torch._dynamo.config.recompile_limit == 2


def test_a_limit_and_a_collector_of_the_users_come_back_after_an_error() -> None:
    limit = torch._dynamo.config.recompile_limit
    with pytest.raises(KeyError), many_compilations(), no_garbage():
        assert torch._dynamo.config.recompile_limit > limit and not gc.isenabled()
        raise KeyError
    assert torch._dynamo.config.recompile_limit == limit and gc.isenabled()
