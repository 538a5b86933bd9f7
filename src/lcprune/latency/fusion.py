"""What is left of a network's operators where a compiler joins some of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from lcprune.errors import LatencyError
from lcprune.latency.operations import Operation

FUSIONS = ("none", "pointwise", "activation")


def fuse(found: Sequence[Operation], how: str) -> list[Operation]:
    """What is left of a network's operators where a compiler joins some of them.

    Args:
        found: the operators in order.
        how: "none" leaves all; "pointwise" joins element-wise operators that follow one another into one pass over
            the data (`torch.compile`); "activation" also lets batch norm and activations ride on the layer before
            them, so that only sums cost a pass (ONNX Runtime, most engines for phones).

    Raises:
        LatencyError: there is no such way.
    """
    if how not in FUSIONS:
        raise LatencyError(f"fusion {how!r} is not known; choose one of {', '.join(FUSIONS)}")
    if how == "none":
        return list(found)
    kept: list[Operation] = []
    for run in _runs(found):
        if run[0].kind != "pointwise":
            kept += run
            continue
        passes = [one for one in run if how == "pointwise" or len(_full_size(one)) > 1]
        if passes:
            kept.append(max(passes, key=lambda one: (len(_full_size(one)), torch.Tag.pointwise in one.func.tags)))
        elif not kept or kept[-1].kind != "contraction":
            kept.append(run[-1])
    return kept


def _runs(found: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Stretches of element-wise operators on tensors of one shape; everything else by itself."""
    run: list[Operation] = []
    for one in found:
        if run and one.kind == "pointwise" == run[-1].kind and one.written == run[-1].written:
            run.append(one)
        else:
            if run:
                yield run
            run = [one]
    if run:
        yield run


def _full_size(one: Operation) -> list[int]:
    """The tensors that are as large as what is written."""
    sizes = [math.prod(length.full for length in shape) for shape in one.shapes]
    return [index for index, size in enumerate(sizes) if size == math.prod(one.written)]
