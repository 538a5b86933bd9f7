"""Memory that stays in the process while networks run, and goes back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, statistics, torch
from lcprune import models
from lcprune.heap import memory_kept, trim
torch.set_num_threads(1)
model, x = models.build("resnet20").eval(), torch.randn(32, 3, 32, 32)

def page_faults():  # of one pass: the median, since the kernel may take a page back at any time
    faults = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        model(x)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return int(statistics.median(faults))

def resident():  # pages
    return int(open("/proc/self/statm").read().split()[1])

with torch.inference_mode():
    left = page_faults()
    with memory_kept():
        with memory_kept():
            page_faults()
        kept = page_faults()  # still kept: the outer one has not ended
        before = resident()
        [torch.ones(2**18) for _ in range(200)]
        grown = resident() - before
        trim()
        trimmed = resident() - before
        [torch.ones(2**18) for _ in range(200)]
    after = resident() - before
print(left, kept, grown, trimmed, after)
"""


FORK = """
import os, signal
from lcprune import heap
heap._lock.acquire()
heap._inside = 2  # threads that the child does not have
child = os.fork()
if child == 0:
    signal.alarm(10)
    assert heap._inside == 0
    with heap.memory_kept():
        assert heap._inside == 1
    os._exit(0 if heap._inside == 0 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork")
def test_a_forked_process_begins_with_no_memory_kept() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_networks_run_without_page_faults_while_memory_is_kept_and_it_goes_back() -> None:
    faults = []
    for _ in range(3):  # what glibc has freed before decides whether it keeps memory of its own accord: seldom
        done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        left, kept, grown, trimmed, after = map(int, done.stdout.split())
        assert kept < 10
        assert grown > 40_000  # of the 51,200 pages that the tensors had
        assert max(trimmed, after) < grown / 4
        faults.append(left)
        if left > 300:
            return
    pytest.fail(f"allocators have changed and `memory_kept` can go: {faults} page faults without it")
