"""What measuring changes in the process: it has the effect that it is there for, and does not outlive it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn

from lcprune import latency
from lcprune.latency.process import many_compilations, no_garbage

FAULTS = """
import resource, statistics, torch
from lcprune import models
from lcprune.latency.process import keep_memory
torch.set_num_threads(1)
model, x = models.build("resnet20").eval(), torch.randn(32, 3, 32, 32)

def page_faults():  # of one pass: the median, since the kernel may take a page back at any time
    faults = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        model(x)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return int(statistics.median(faults))

with torch.inference_mode():
    print(page_faults())
    keep_memory()
    print(page_faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_networks_run_without_page_faults_once_memory_is_kept() -> None:
    faults = []
    for _ in range(3):  # what glibc has freed before decides whether it keeps memory of its own accord: seldom
        done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        left, kept = map(int, done.stdout.split())
        assert kept < 10
        faults.append(left)
        if left > 300:
            return
    pytest.fail(f"allocators have changed and `keep_memory` can go: {faults} page faults without it")


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
