"""The switches of PyTorch that a trace sets for attention come back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import lcprune
from lcprune.graph.attention import plain_attention


def switches() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    kernels = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    return torch.backends.mha.get_fastpath_enabled(), *kernels


PLAIN = (False, False, False, True)


class Attends(nn.Module):
    """Attention, and an error or none after it."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.project, self.attention, self.fails = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True), fails

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        found: Tensor = self.attention(x, x, x)[0]
        if self.fails:
            raise ValueError("after attention")
        return found


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_switches_come_back_after_a_trace(fast: bool, fails: bool) -> None:
    original = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        before = switches()
        if fails:
            with pytest.raises((ValueError, lcprune.LcpruneError), match="after attention"):
                lcprune.trace(Attends(fails).eval(), torch.randn(2, 5, 6))
        else:
            lcprune.trace(Attends(fails).eval(), torch.randn(2, 5, 6))
        assert switches() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(original)


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_of_two_threads_puts_switches_back(fails: bool) -> None:
    before, seen = switches(), {}
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        try:
            with plain_attention():
                first_is_in.set()
                assert second_is_in.wait(10)
                if fails:
                    raise ValueError
        except ValueError:
            seen["error"] = True
        first_is_out.set()

    def second() -> None:
        assert first_is_in.wait(10)
        with plain_attention():
            second_is_in.set()
            assert first_is_out.wait(10)
            seen["inside"] = switches()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen["inside"] == PLAIN and ("error" in seen) == fails
    assert before != PLAIN and switches() == before
