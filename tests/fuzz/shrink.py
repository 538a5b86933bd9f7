"""From a network that fails to a few lines that fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from .laws import Failure, Kept, check
from .programs import IMPORTS, Network, Program, Step, build

_SELECTIONS = 4  # that are drawn of each smaller network


def failure_of(program: Program, seed: int, only: str = "", kept: Kept | None = None) -> Failure | None:
    """How a program fails, if it does."""
    torch.set_default_dtype(getattr(torch, program.dtype))
    try:
        check(build(program), seed, kept, only)
    except Failure as failure:
        return failure
    finally:
        torch.set_default_dtype(torch.float32)
    return None


def shrink(program: Program, failure: Failure, seed: int, seconds: float = 20.0) -> tuple[Program, Failure]:
    """The smallest program and selection found that fail by the same law with the same kind of error."""
    until = time.process_time() + seconds
    best = failure

    def fails(candidate: Program) -> bool:
        nonlocal best
        for offset in range(_SELECTIONS):
            found = failure_of(candidate, seed + offset, failure.law)
            if found is not None and found.kind == failure.kind:
                best = found
                return True
        return False

    smaller = True
    while smaller and time.process_time() < until:
        smaller = False
        for candidate in _smaller(program):
            if time.process_time() > until:
                break
            if fails(candidate):
                program, smaller = candidate, True
                break
    if best.kept is not None:
        best = _fewer(program, best, seed)
    return program, best


def _smaller(program: Program) -> Iterator[Program]:
    """Programs without some of the steps, most of them first; then plainer ones."""
    for steps in _without(program.steps):
        yield replace(program, steps=steps)
    if len(program.shapes) > 1:
        yield replace(program, shapes=program.shapes[:1])
    if program.training:
        yield replace(program, training=False)
    if program.dtype != "float64":
        yield replace(program, dtype="float64")


def _without(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield steps[:start] + steps[start + size :]
        size //= 2
    for place, step in enumerate(steps):
        if step.inner:
            yield steps[:place] + step.inner + steps[place + 1 :]
            for inner in _without(step.inner):
                yield (*steps[:place], replace(step, inner=inner), *steps[place + 1 :])


def _fewer(program: Program, failure: Failure, seed: int) -> Failure:
    """Remove as little as still fails: whole groups first, then one unit after another."""

    def smaller(kept: Kept, sizes: dict[str, int]) -> Iterator[Kept]:
        for name, own in kept.items():
            gone = [unit for unit in range(sizes[name]) if unit not in own]
            if gone:
                yield {**kept, name: list(range(sizes[name]))}
                if len(gone) > 1:
                    yield from ({**kept, name: sorted([*own, unit])} for unit in gone)

    sizes = _sizes(program)
    shrunk = True
    while shrunk:
        shrunk = False
        for kept in smaller(failure.kept or {}, sizes):
            found = failure_of(program, seed, failure.law, kept)
            if found is not None and found.kind == failure.kind:
                failure, shrunk = found, True
                break
    return failure


def _sizes(program: Program) -> dict[str, int]:
    import lcprune

    torch.set_default_dtype(getattr(torch, program.dtype))
    try:
        network = build(program)
        return {group.name: group.size for group in lcprune.trace(network.model(), network.inputs()).groups}
    finally:
        torch.set_default_dtype(torch.float32)


_ORACLE = "from tests.graph.oracle import counted_macs, counted_params, silenced_outputs, worst_difference\n"
_LAST = {  # what shows that a law does not hold
    "run": "small.eval()(*inputs)",
    "cost": "net.eval(), small.eval()\n"
    + _ORACLE
    + "assert plan.macs == counted_macs(small, inputs) and plan.params == counted_params(small)",
    "verify": "verification = lcprune.verify(net, plan, inputs)\nassert verification, verification",
    "oracle": "net.eval(), small.eval()\n"
    + _ORACLE
    + "assert worst_difference(small(*inputs), silenced_outputs(net, inputs, graph, kept)) < 1e-3",
    "again": "again = lcprune.trace(small, inputs)\nassert (again.macs, again.params) == (plan.macs, plan.params)",
    "train": "from torch.utils._pytree import tree_leaves\n"
    "sum(out.square().mean() for out in tree_leaves(small.train()(*inputs))).backward()",
    "repair": "lcprune.repair(net, plan, [torch.randn(12, *inputs[0].shape[1:])], progress=False)",
}


def reproducer(program: Program, failure: Failure) -> str:
    """A script that shows the failure, run from the repository's root with `PYTHONPATH=src`."""
    torch.set_default_dtype(getattr(torch, program.dtype))
    network: Network = build(program)
    torch.set_default_dtype(torch.float32)
    lines = [f'"""{failure}"""', IMPORTS.rstrip()]
    lines += ["import lcprune", "", f"torch.set_default_dtype(torch.{program.dtype})", "", "", network.source]
    lines += [
        "",
        f"torch.manual_seed({program.seed})",
        f"net = Network().train({program.training})",
        "for tensor in [*net.parameters(), *net.buffers()]:",
        "    if tensor.ndim == 1 and tensor.is_floating_point():",
        "        nn.init.uniform_(tensor, 0.5, 1.5)",
        f"torch.manual_seed({program.seed})",
        f"inputs = tuple(torch.randn(shape) for shape in {program.shapes})",
        "graph = lcprune.trace(net, inputs)",
    ]
    if failure.kept is not None:
        lines += [f"kept = {failure.kept}", "plan = graph.plan(kept)", "small = plan.apply(net)"]
        lines += [_LAST.get(failure.law, f"# and then: {failure.law}")]
    return "\n".join(lines) + "\n"
