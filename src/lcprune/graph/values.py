"""What a network reads out of its data: numbers (`.item()`), and how many elements pass a test (`x[x > 0]`).

A network that does so cannot run on shapes alone. So it runs on data once, and what it reads is written down. Later
passes run on shapes and are told the same at the same place in the code: a cut network takes the same branches and
finds as many boxes as the whole one did, whatever it would compute.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from lcprune.graph.rules import Call, is_mask
from lcprune.graph.site import CodeSite, own_code

OperatorSite = tuple[bool, str, CodeSite]  # training mode or not, an operator, and where in the network's code


def depends_on_values(call: Call) -> bool:
    """Whether an operator gives a plain number, or a tensor whose shape cannot be told from the inputs' shapes."""
    if call.name == "aten::index":
        return any(map(is_mask, call.tensors[1:]))
    return looks_at_values(call.func) or call.name == "torchvision::nms"


@cache
def looks_at_values(func: Any) -> bool:
    """Whether PyTorch says that what an operator gives, or its shape, depends on values."""
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


class AsOnMeta(TorchFunctionMode):
    """Tensors with data say that they are on `meta`: code that asks takes the branch that it takes without data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def with_data(device: torch.device) -> torch.device:
            return torch.device("cpu") if device.type == "meta" else device

        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device("meta")
        args, kwargs = tree_map_only(torch.device, with_data, (args, kwargs or {}))
        return func(*args, **kwargs)


class Values:
    """What a pass on data read, told to later passes."""

    def __init__(self) -> None:
        self.recording = True  # the pass on data is not over yet
        self._read: dict[OperatorSite, list[Any]] = {}
        self._visits: Counter[OperatorSite] = Counter()

    def start(self) -> None:
        """A pass begins."""
        self._visits.clear()

    def look(self, call: Call, training: bool, site: CodeSite) -> Any:
        """The result of an operator that depends on values; an error if the pass on data did not come here as often."""
        place = training, call.name, own_code(site)
        if self.recording:
            out = call.func(*call.args, **call.kwargs)
            self._read.setdefault(place, []).append(_counts(call) if call.name == "aten::index" else _shape(out))
            return out
        visit = self._visits[place]
        self._visits[place] += 1
        if all(tensor.device.type != "meta" for tensor in call.tensors):
            return call.func(*call.args, **call.kwargs)  # a constant, or a size that goes through a tensor
        read = self._read.get(place, [])
        if visit >= len(read):
            raise RuntimeError("the code looks at a value where it did not before")
        if call.name == "aten::index":
            return call.func(call.input, _positions(call, read[visit]))
        return _shape(read[visit])


def _shape(out: Any) -> Any:
    """The same without data; numbers stay."""
    return tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), out)


def _counts(call: Call) -> list[int]:
    """How many elements each mask among the indices wants."""
    return [int(index.count_nonzero()) if is_mask(index) else 0 for index in call.args[1]]


def _positions(call: Call, counts: list[int]) -> list[Tensor | None]:
    """The indices with as many positions in place of each mask: the other dimensions follow the cut."""
    found: list[Tensor | None] = []
    for index, count in zip(call.args[1], counts, strict=True):
        mask = is_mask(index)
        found += [torch.empty(count, dtype=torch.int64, device="meta")] * index.ndim if mask else [index]
    return found
