"""A few random networks in every run of the suite; and that the fuzzer finds what is wrong and makes it small."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz import shrink as shrinking
from fuzz.__main__ import fuzz
from fuzz.laws import Failure, check
from fuzz.programs import Draft, Network, Program, Step, build, random_program
from lcprune.graph.rules import table


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of networks that a person would write otherwise
        yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("seed", range(1, 9))
def test_random_cuts_of_random_networks(seed: int) -> None:
    """`python -m tests.fuzz` looks longer."""
    program = random_program(seed)
    torch.set_default_dtype(getattr(torch, program.dtype))
    check(build(program), seed)


def flipped() -> Program:
    """A network that turns its channels round, among other things."""
    torch.set_default_dtype(torch.float64)
    steps = (Step("conv", 1), Step("activation", 3))
    for seed in itertools.count():
        program = Program((*steps, Step("move", seed), Step("conv", 5), Step("logits", 0)))
        if ".flip(1)" in build(program).source and "cat" not in build(program).source:
            return program
    raise AssertionError


def test_what_does_not_fit_leaves_no_trace() -> None:
    draft = Draft("Network", {"x": torch.randn(2, 3, 4)}, [])
    draft.do("y = x.transpose(0, 1)[1:]")
    draft._restore(draft._state())
    draft.do("x += 1")
    assert draft.values["y"].stride() == (4, 12, 1) and torch.equal(draft.values["y"][0], draft.values["x"][:, 1])


def test_networks_without_gradients_are_not_counted() -> None:
    torch.set_default_dtype(torch.float64)
    lines = "self.conv = nn.Conv2d(2, 6, 1)", "def forward(self, x):", "  x = self.conv(x).chunk(2, 1)[1]"
    init = "class Network(nn.Module):\n def __init__(self):\n  super().__init__()\n  "
    source = init + "\n ".join([*lines, "  x.mul_(0.5)", "  return x"])
    check(Network(Program((), ((2, 2, 4, 4),)), source), 0, only="cost")


def test_what_fails_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("run", ValueError(), None)

    def failure_of(program: Program, *_: object) -> Failure | None:
        return failure if ".flip(1)" in build(program).source else None

    monkeypatch.setattr(shrinking, "failure_of", failure_of)
    program = flipped()
    inside = replace(program, steps=(*program.steps[:2], Step("block", 0, program.steps), *program.steps[3:]))
    for start in (program, inside, replace(program, training=True, shapes=((2, 3, 6, 6), (2, 5)))):
        smaller, _ = shrinking.shrink(start, failure, 0)
        assert [step.idiom for step in smaller.steps] == ["move"] and len(smaller.shapes) == 1 and not smaller.training


def test_finds_a_wrong_rule_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = flipped()
    monkeypatch.setattr("fuzz.__main__.random_program", lambda seed: replace(program, seed=seed))
    assert fuzz(range(1, 2), tmp_path, 60) == 0 and not list(tmp_path.iterdir())
    monkeypatch.setitem(table._RULES, "aten::flip", table._RULES["aten::clone"])  # nothing moves
    table.find_rule.cache_clear()
    try:
        assert fuzz(range(1, 2), tmp_path, 60, shrink_for=100) == 1
        (script,) = tmp_path.iterdir()
        assert script.name.startswith("verify_") and script.read_text() in capsys.readouterr().out
        network = script.read_text().split("class Network")[1].split("torch.manual_seed")[0].strip().splitlines()
        assert len(network) <= 11, network
        with pytest.raises(AssertionError, match="WRONG"):
            exec(script.read_text(), {})
    finally:
        monkeypatch.undo()
        table.find_rule.cache_clear()
    exec(script.read_text(), {})
