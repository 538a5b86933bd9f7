"""What is added to a layer's outputs: who is known to make up for whom, and what that gains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dependent import pairs, settled
from torch import Tensor, nn
from torch.nn import functional

import lcprune
from lcprune.repairs import mend
from lcprune.repairs.watch import Beside, Watch
from lcprune.repairs.wiring import Survey

CHANNELS = 8


class Block(nn.Module):
    """Two convolutions, a batch norm, and a sum that a test defines."""

    def __init__(self, join: Callable[[Block, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.bn, self.late = nn.BatchNorm2d(CHANNELS), nn.ReLU()
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x)

    def branch(self, x: Tensor) -> Tensor:
        inner: Tensor = self.bn(self.conv2(functional.relu(self.conv1(x))))
        return inner


def _in_place(block: Block, x: Tensor) -> Tensor:
    inner = block.branch(x)
    inner += x
    return inner.relu_()


def _written_over(block: Block, x: Tensor) -> Tensor:
    x = x * 1
    inner = block.branch(x)
    return inner + x.relu_()


def _read_twice(block: Block, x: Tensor) -> Tensor:
    inner = block.branch(x)
    return inner + x + inner.mean()


def _too_late(block: Block, x: Tensor) -> Tensor:
    return block.branch(x) + block.late(x)


SUMS: dict[str, tuple[Callable[[Block, Tensor], Tensor], Beside | None]] = {
    "plain": (lambda block, x: functional.relu(x + block.branch(x)), ("", True)),
    "in place": (_in_place, ("", True)),
    "of something between": (lambda block, x: x + 0.5 * block.branch(x), None),
    "of another size": (lambda block, x: block.branch(x) + x.mean((2, 3), keepdim=True), None),
    "with a factor": (lambda block, x: torch.add(block.branch(x), x, alpha=2), None),
    "with what is written over": (_written_over, None),
    "with what comes later": (_too_late, None),
    "and read otherwise": (_read_twice, None),
}


@pytest.mark.parametrize("join, beside", SUMS.values(), ids=SUMS)
def test_what_is_added_to_a_layer_is_known(join: Callable[[Block, Tensor], Tensor], beside: Beside | None) -> None:
    survey = Survey(Block(join).eval(), torch.randn(2, CHANNELS, 5, 5))
    assert survey.watch.beside("conv2") == beside
    assert survey.watch.beside("conv1") is None


def test_the_later_of_two_layers_makes_up_for_both() -> None:
    block = Block(lambda block, x: block.branch(x) + block.conv3(x)).eval()
    block.conv3 = nn.Conv2d(CHANNELS, CHANNELS, 1)
    survey = Survey(block, torch.randn(2, CHANNELS, 5, 5))
    assert survey.watch.beside("conv3") == ("bn", False)
    assert survey.watch.beside("conv2") is None


def test_a_norm_with_an_activation_inside_is_no_plain_factor() -> None:
    class Active(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return functional.relu(super().forward(input))

    class Inactive(Active):
        def forward(self, input: Tensor) -> Tensor:
            return nn.BatchNorm2d.forward(self, input)

    for kind, beside in ((Active, None), (Inactive, ("", True))):
        block = Block(lambda block, x: x + block.branch(x)).eval()
        block.bn = kind(CHANNELS).eval()
        assert Survey(block, torch.randn(2, CHANNELS, 5, 5)).watch.beside("conv2") == beside


def test_modules_that_run_twice_tell_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.first, self.second = nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(x)
            y = self.act(self.first(-x))
            return x + self.second(y)

    survey = Survey(Twice().eval(), torch.randn(2, 4))
    assert survey.watch.beside("second") is None  # -x is what `first` reads, and `act` has given two


class _Twins(nn.Module):
    """Two branches whose hidden layers compute the same; what one loses, the other has."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.hidden, self.first = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 6, 1)
        self.twin, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 6, 1, bias=not norm)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.twin.load_state_dict(self.hidden.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        lost = self.first(functional.relu(self.hidden(x)))
        return lost + self.norm(self.second(functional.relu(self.twin(x))))


@pytest.mark.parametrize("norm", [True, False])
def test_a_branch_makes_up_for_what_the_other_lost(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    whole, images = settled(_Twins(norm)), torch.randn(300, 3, 8, 8)
    plan = lcprune.trace(whole, images[:2]).plan({"hidden": range(4)})

    def distance() -> float:
        return mend(whole, plan, plan.apply(whole), pairs(images), "refit", progress=False)[1].distances["refit"]

    known = distance()
    monkeypatch.setattr(Watch, "beside", lambda self, name: None)
    assert known < 0.1 * distance()


def test_sums_where_numbers_are_double_by_default() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        whole, images = _Twins(norm=False).eval(), torch.randn(60, 3, 8, 8)
        plan = lcprune.trace(whole, images[:2]).plan({"hidden": range(4)})
        samples = [(image, ()) for image in images]
        done = mend(whole, plan, plan.apply(whole), samples, "refit", progress=False)[1]
    finally:
        torch.set_default_dtype(before)
    assert done.distances["refit"] < done.distances["none"]
