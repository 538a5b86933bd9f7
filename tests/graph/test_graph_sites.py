"""Places in the code are told apart, and found again; the rest of the process does not matter to a pass."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import lcprune
from lcprune.graph.discover import Discover


class Slices(nn.Module):
    """Two slices on one line, and one in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        pair = y[:, :2].relu() + y[:, 2:4].relu()
        return sum((y[:, 4:6].relu() for _ in range(20)), pair)


def test_every_pass_finds_the_same_places() -> None:
    def places() -> tuple[list[object], set[object]]:
        run = Discover(Slices())
        run.forward((torch.randn(1, 3, 4, 4),))
        return [part.site for part in run.parts.values()], {site for site, _, _ in run.uses}

    (taken, used), again = places(), places()
    assert (taken, used) == again
    assert len(set(taken)) == len(used) == 3  # two on one line, and one for all rounds of the loop


def test_trace_hears_no_other_thread() -> None:
    """Another thread runs its own networks all the while, and no hook is left for modules of the whole process."""
    busy, stop = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with torch.no_grad():
                busy(torch.randn(1, 3, 8, 8))

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(20):
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
            graph = lcprune.trace(model, torch.randn(1, 3, 8, 8))
            assert [group.name for group in graph.groups] == ["0"] and dict(graph.norms) == {"0": "1"}
    finally:
        stop.set()
        other.join()
    assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks
