"""A random network as a short list of steps, and the code that the steps stand for.

A step is the name of an idiom and a seed for its choices. Steps are written down one after another: an idiom sees the
shapes of what there is and writes lines of code, which run at once. What does not fit (odd numbers of channels, too
large, not finite) is left out, so that every list of steps is a network, and so is what is left of it without some.
"""

from __future__ import annotations

import copy
import linecache
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_LARGEST = 12_000  # elements of a value
_WIDEST = 40  # channels

IMPORTS = """import math
import torch
import torch.nn.functional as F
from torch import nn
"""


@dataclass(frozen=True)
class Step:
    """One idiom.

    Attributes:
        idiom: its name.
        seed: of its choices.
        inner: the steps of a module of its own, where the idiom has one.
    """

    idiom: str
    seed: int
    inner: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Program:
    """A random network.

    Attributes:
        steps: what it does, in order.
        shapes: of its inputs.
        seed: of its weights and inputs.
        dtype: of its weights and inputs.
        training: its mode when it is handed over.
    """

    steps: tuple[Step, ...]
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 6, 6),)
    seed: int = 0
    dtype: str = "float64"
    training: bool = False


Idiom = Callable[["Draft", str], str]
IDIOMS: dict[str, Idiom] = {}
HEADS: dict[str, Idiom] = {}  # what a network ends with
WEIGHTS: dict[str, int] = {}


def idiom(weight: int = 1, head: bool = False) -> Callable[[Idiom], Idiom]:
    """Enter a function that writes code for a value and gives the expression of the result."""

    def enter(function: Idiom) -> Idiom:
        (HEADS if head else IDIOMS)[function.__name__] = function
        WEIGHTS[function.__name__] = weight
        return function

    return enter


class Unfit(Exception):
    """The idiom does not fit the values that there are."""


class Draft:
    """A module that is being written down, and run line by line.

    Args:
        name: of its class.
        inputs: name -> value.
        others: source of the classes written so far.
    """

    def __init__(self, name: str, inputs: dict[str, Tensor], others: list[str]) -> None:
        self.name, self.others = name, others
        self.arguments = list(inputs)
        self.module = nn.Module()
        self.values: dict[str, Tensor] = dict(inputs)
        self.made: list[str] = []  # lines of __init__
        self.lines: list[str] = []  # lines of forward
        self.random = random.Random(0)
        self.inner: tuple[Step, ...] = ()
        self._count = 0

    # -- for idioms ---------------------------------------------------------------------------------------------

    def pick(self, *options: Any) -> Any:
        """One of these."""
        return self.random.choice(options)

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(self.values[value].shape)

    def space(self, value: str) -> int:
        """The number of spatial dimensions of a (batch, channels, ...) value."""
        return self.need(len(self.shape(value)) - 2, len(self.shape(value)) > 2)

    def need(self, result: Any, condition: bool = True) -> Any:
        """The first argument, if the condition holds."""
        if not condition:
            raise Unfit
        return result

    def add(self, expression: str, kind: str = "") -> str:
        """Keep a module, parameter (kind "nn.Parameter"), buffer ("buffer") or number; the name it has in `forward`."""
        self._count += 1
        name = f"{self.name[0].lower()}{self._count}"
        if kind == "buffer":
            line = f"self.register_buffer('{name}', {expression})"
        else:
            line = f"self.{name} = {f'{kind}({expression})' if kind else expression}"
        self.made.append(line)
        self._run(line)
        shake(getattr(self.module, name))
        return f"self.{name}"

    def call(self, module: str, value: str) -> str:
        """Keep a module and call it."""
        return f"{self.add(module)}({value})"

    def let(self, expression: str) -> str:
        """Name the value of an expression."""
        self._count += 1
        name = f"x{self._count}"
        self.do(f"{name} = {expression}")
        value = self.values[name]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise Unfit
        return name

    def do(self, line: str) -> None:
        """Write and run a line of `forward`."""
        self.lines.append(line)
        self._run(line)

    def other(self, value: str, fits: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> str:
        """Another value of a shape that fits."""
        found = [name for name in self.batched() if name != value and fits(self.shape(name), self.shape(value))]
        return self.need(self.pick(*found) if found else "", bool(found))

    def batched(self) -> list[str]:
        """The values that there are."""
        return [name for name, value in self.values.items() if isinstance(value, Tensor) and value.ndim > 1]

    def block(self, value: str) -> str:
        """A module of its own from the step's inner steps; its name in `forward`."""
        inner = Draft(f"Block{len(self.others)}", {"x": self.values[value].clone()}, self.others)
        latest = inner.write(self.inner)
        self.need(latest, latest != "x")
        self.others.append(inner.source(latest))
        self._count += 1
        name = f"{self.name[0].lower()}{self._count}"
        self.made.append(f"self.{name} = {inner.name}()")
        scope: dict[str, Any] = {}
        exec(IMPORTS + "\n".join(self.others), scope)
        setattr(self.module, name, shake(scope[inner.name]()))
        return f"self.{name}"

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, steps: Sequence[Step]) -> str:
        """Write steps down, leaving out what does not fit; the name of the latest value."""
        latest = self.arguments[0]
        for step in steps:
            before = self._state()
            self.random, self.inner = random.Random(step.seed), step.inner
            source = latest
            if self.random.random() < 0.12:
                source = self.pick(*self.batched())
            try:
                result = self.let(IDIOMS[step.idiom](self, source))
                self._fit(self.values[result])
            except Exception:  # whatever an idiom cannot do with this value
                self._restore(before)
                continue
            latest = result
        return latest

    def _fit(self, value: Tensor) -> None:
        """Neither too large nor too far from one, and with a batch."""
        spread = float(value.abs().max()) if value.numel() else 0.0
        fits = value.ndim > 1 and value.shape[0] == self.values[self.arguments[0]].shape[0] and value.shape[1] > 0
        self.need(None, fits and value.numel() <= _LARGEST and max(value.shape[1:2]) <= _WIDEST)
        self.need(None, 1e-2 < spread < 1e2 and bool(value.isfinite().all()))

    def _run(self, line: str) -> None:
        with torch.no_grad():
            exec(line, {"torch": torch, "nn": nn, "F": nn.functional, "math": math, "self": self.module}, self.values)
        self.values = {name: value for name, value in self.values.items() if not name.startswith("_")}

    def _state(self) -> Any:
        # Deep copies keep strides and what lies in the same memory.
        return len(self.made), len(self.lines), len(self.others), copy.deepcopy(self.values)

    def _restore(self, state: Any) -> None:
        made, lines, others, self.values = state
        del self.made[made:], self.lines[lines:], self.others[others:]

    def end(self, head: Step, latest: str) -> str:
        """What is returned: the head's result, or the latest value where it does not fit."""
        before = self._state()
        self.random = random.Random(head.seed)
        try:
            result = HEADS[head.idiom](self, latest)
            self._run(f"_result = {result}")
        except Exception:
            self._restore(before)
            return latest
        return result

    def source(self, result: str) -> str:
        """The class."""
        code = "\n".join([*self.lines, result])
        used = [
            line for line in self.made if _is_used(line, code) or any(_is_used(line, o) for o in self.made if o != line)
        ]
        made = "".join(f"        {line}\n" for line in used)
        lines = "".join(f"        {line}\n" for line in self.lines)
        return (
            f"class {self.name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n"
            f"    def forward(self, {', '.join(self.arguments)}):\n{lines}        return {result}\n"
        )


def _is_used(line: str, code: str) -> bool:
    """Whether code reads what a line of `__init__` keeps."""
    name = re.match(r"self\.register_buffer\('(\w+)'|self\.(\w+) =", line)
    return name is not None and re.search(rf"self\.{name[1] or name[2]}\b", code) is not None


@dataclass(frozen=True)
class Network:
    """A program as code.

    Attributes:
        program: what it was written from.
        source: the classes; the last one, `Network`, takes no arguments.
    """

    program: Program
    source: str

    def model(self) -> nn.Module:
        """The network; the same weights at every call."""
        name = f"network{self.program.seed}.py"  # where the trace looks up the line that failed
        source = IMPORTS + self.source
        scope: dict[str, Any] = {}
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), scope)
        torch.manual_seed(self.program.seed)
        return shake(scope["Network"]()).train(self.program.training)

    def inputs(self) -> tuple[Tensor, ...]:
        """Random inputs; the same at every call."""
        torch.manual_seed(self.program.seed)
        return tuple(torch.randn(shape) for shape in self.program.shapes)


def build(program: Program) -> Network:
    """Write a program down. The default dtype must be the program's."""
    torch.manual_seed(program.seed)
    inputs = {f"x{'yz'[place - 1] if place else ''}": torch.randn(shape) for place, shape in enumerate(program.shapes)}
    others: list[str] = []
    draft = Draft("Network", inputs, others)
    heads = [step for step in program.steps if step.idiom in HEADS]
    latest = draft.write([step for step in program.steps if step.idiom in IDIOMS])
    result = draft.end(heads[0], latest) if heads else latest
    return Network(program, "\n\n".join([*others, draft.source(result)]))


def shake(thing: Any) -> Any:
    """Give biases, scales and running statistics values that a wrong cut would expose."""
    for tensor in [*thing.parameters(), *thing.buffers()] if isinstance(thing, nn.Module) else [thing]:
        if isinstance(tensor, Tensor) and tensor.ndim == 1 and tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return thing


def random_program(seed: int) -> Program:
    """A program that depends on the seed alone."""
    choose = random.Random(seed)
    names = [name for name in IDIOMS for _ in range(WEIGHTS[name])]

    def steps(least: int, most: int, depth: int) -> tuple[Step, ...]:
        return tuple(
            Step(choose.choice(names), choose.randrange(10**6), steps(1, 3, depth - 1) if depth else ())
            for _ in range(choose.randint(least, most))
        )

    size = choose.choice([5, 6, 8])
    space = choose.choice([(size, size), (size, size), (size, size), (size + 1, size - 1), (size * 2,), (4, 4, 4)])
    shape = (choose.choice([2, 2, 2, 3]), choose.choice([1, 2, 3, 3, 3, 4]), *space)
    more = choose.choice([(), (), (), (), (shape,), ((shape[0], 5),)])
    head = Step(choose.choice(list(HEADS)), choose.randrange(10**6))
    body = (Step("conv", choose.randrange(10**6)), *steps(2, 9, 2))
    dtype = choose.choice(["float64", "float64", "float64", "float32"])
    return Program((*body, head), (shape, *more), seed, dtype, choose.random() < 0.15)
