"""A network run in stages: early layers, whose feature maps are large, on few images, later ones on more.

A stage begins at a gate, a module through whose first argument all goes that layers behind it read. Images go through
the layers before it in small batches; what arrives is put together and goes on at once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.batches import Batch, call, together
from lcprune.repairs.layers import layers_of, places_of
from lcprune.repairs.watch import first_named, listening
from lcprune.repairs.wiring import Gate

_LIVE = 2  # times what one layer reads and gives, in float32: what a stage keeps in memory while it runs
_MORE = 1.5  # times as many images make another stage


@dataclass(frozen=True)
class Stage:
    """Layers from one gate to the next stage's.

    Attributes:
        gate: name of the module; empty for the network itself.
        batches: that fit into memory, from the first on.
        images: that these are.
        share: of the places that a refit looks at, as many as can be kept.
        layers: their names.
    """

    gate: str
    batches: int
    images: int
    share: float
    layers: frozenset[str]


def plan_stages(model: nn.Module, gates: Sequence[Gate], batches: Sequence[Batch], room: int) -> list[Stage]:
    """Stages that take `room` bytes to run, and half as much for what is kept; `gates` are in their order."""
    found: list[Stage] = []
    kept = 0  # numbers in the last stage
    size, images, most = batches[0].size, sum(batch.size for batch in batches), room // 8
    layers = layers_of(model)
    leads = functools.cache(lambda gate: _leads(model, gate, batches))

    def ended() -> Stage:
        return replace(found[-1], share=min(1.0, most / max(1, kept)))

    def looked(stage: Stage) -> int:
        """Numbers that a stage takes where a refit looks at the layers before the next gate."""
        maps = [(layers[name], stage.images * rows, *rest) for name in here for rows, *rest in gate.behind[name]]
        return sum(count * channels * min(places, places_of(layer, count)) for layer, count, channels, places in maps)

    for gate, following in itertools.zip_longest(gates, gates[1:]):
        here = gate.behind.keys() - (following.behind.keys() if following is not None else ())
        fit = max(1, min(room // (_LIVE * 4 * max(1, gate.numbers)) // size, len(batches)))
        stage = Stage(gate.name, fit, min(fit * size, images), 1.0, frozenset(gate.behind))
        if found:
            more = looked(found[-1])
            full = kept and kept + more > most
            begins = full or fit >= _MORE * found[-1].batches
            # Of gates before the same layers, the last one that leads: less arrives there.
            if not (begins and (here or (following is not None and not leads(following))) and leads(gate)):
                kept += more
                continue
            found[-1] = replace(ended(), layers=found[-1].layers - stage.layers)
        found.append(stage)
        kept = looked(stage)
    return [*found[:-1], ended()]


class Staged:
    """A network that runs stage by stage, each on all of its images at once."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch]) -> None:
        self.model, self.batches = model, batches
        self._arrived: list[Tensor] = []  # at the next gate
        self._images = 0  # batches that have arrived there

    def run(self, stage: Stage, following: Stage | None, known: dict[str, Tensor]) -> None:
        """Run from a stage's gate to that of the following one.

        In `known` is what the caller has kept on the way: what was there before the gate is what arrives at the gate.
        """
        batches = self.batches[: stage.batches]
        if not stage.gate:
            self._run(together(batches).inputs, following)
        else:
            for batch in batches[self._images :]:
                self._to(stage.gate, batch.inputs)
            given = torch.cat(self._arrived)
            self._arrived = []

            def give(_: Tensor) -> Tensor:
                known.update(dict.fromkeys(known, given))
                return given

            with _first(self.model, stage.gate, give):
                self._run(batches[0].inputs, following)
        self._images = stage.batches

    def _run(self, inputs: Any, following: Stage | None) -> None:
        if following is None:
            call(self.model, inputs)
        else:
            self._to(following.gate, inputs)

    def _to(self, gate: str, inputs: Any) -> None:
        def take(arriving: Tensor) -> Tensor:
            self._arrived.append(arriving)
            raise _Reached

        with _first(self.model, gate, take), contextlib.suppress(_Reached):
            call(self.model, inputs)


class _Reached(BaseException):
    """No layer from there on needs to run. Networks that handle exceptions let it pass."""


@contextlib.contextmanager
def _first(model: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While a network runs: a module takes something else first; called before all else that is called before it."""

    def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        if args:
            return (change(args[0]), *args[1:]), named
        first = first_named(module, named)
        return args, {**named, first: change(named[first])}

    handle = model.get_submodule(name).register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _leads(model: nn.Module, gate: Gate, batches: Sequence[Batch]) -> bool:
    """Whether layers behind a gate read the same if images arrive there in two batches, tried with three of them."""
    every = together(batches[:3])
    two, one, three = (Batch(every.at(part)[0], (), 0) for part in (slice(2), slice(2, 3), slice(3)))
    stages = [Stage(gate.name if number > 1 else "", number, 0, 1.0, frozenset()) for number in (1, 2)]
    reads: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            reads.setdefault(name, args[0])

    if every.size < 3:
        return False
    try:
        with torch.no_grad(), listening(model, gate.behind, note, before=True):
            call(model, three.inputs)
            expected, reads = reads, {}
            run = Staged(model, [two, one])
            run.run(stages[0], stages[1], {})
            run.run(stages[1], None, {})
    except Exception:  # of the network's own code: it knows how many images it has begun with
        return False
    return reads.keys() == expected.keys() and all(_same(read, expected[name]) for name, read in reads.items())


def _same(read: Tensor, expected: Tensor) -> bool:
    if read.shape != expected.shape or not read.numel():
        return read.shape == expected.shape
    tolerance = max(1e-3, 8 * torch.finfo(read.dtype).eps)
    return bool((read - expected).abs().max() <= tolerance * expected.abs().max())
