"""The table of operator rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lcprune.graph.labels import Labels

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


class Call:
    """One executed operator with the labels of its tensors.

    Args:
        func: the operator.
        args: positional arguments.
        kwargs: named arguments.
        labels_of: gives a tensor's labels.
    """

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], labels_of: Callable[[Tensor], Labels]
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.leaves = list(_flat((*args, *kwargs.values())))
        self.tensors = [value for value in self.leaves if isinstance(value, Tensor)]
        self.labels = [labels_of(tensor) for tensor in self.tensors]
        self.labels_of = labels_of
        self.labelled = any(labels.layers for labels in self.labels)
        self.uniform = all(labels.uniform for labels in self.labels)
        self.weight = bool(self.tensors) and all(labels.weight or labels.uniform for labels in self.labels)

    @property
    def name(self) -> str:
        """The operator's name, e.g. `aten::add_`."""
        return str(self.func._schema.name)

    @property
    def inplace(self) -> bool:
        """Whether the operator writes into its first argument."""
        return self.name.endswith("_") and not self.name.endswith("__")

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, wherever it was given."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def input(self) -> Tensor:
        """The first argument."""
        tensor: Tensor = self.args[0] if self.args else self.kwargs["self"]
        return tensor


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """The arguments of an operator, those in lists one by one; pytree's own way takes longer than most operators."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def is_mask(index: Any) -> bool:
    """Whether an index says of every element if it is wanted."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def is_shared(tensor: Tensor) -> bool:
    """Whether other tensors lie in the same memory, or it stands for a tensor on another device."""
    uses = int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
    return hasattr(tensor, STANDS_IN) or uses > 2  # the tensor's use, and this one


def plain_arguments(call: Call) -> Any:
    """All arguments but the tensors."""
    return [value for value in call.leaves if not isinstance(value, Tensor)]


def no_arguments(call: Call) -> Any:
    """Nothing: only the operator itself must be there."""
    return ()


Outcome: TypeAlias = "Labels | Sequence[Labels] | None"
Apply = Callable[["LabelPass", Call, Any], Outcome]


@dataclass(frozen=True)
class Rule:
    """How an operator treats labels.

    Attributes:
        apply: gives the labels of the outputs.
        mixes: elements along an axis influence one another (normalisation, reduction).
        contracts: an axis of the inputs is summed against a weight.
        always: apply even if no input has labels.
        uneven: equal elements may come out unequal (padding, concatenation, running sums).
        fixed: the arguments that must not follow a cut, such as a convolution's stride. None for operators that may
            come and go with sizes and strides, such as views and copies.
    """

    apply: Apply
    mixes: bool = False
    contracts: bool = False
    always: bool = False
    uneven: bool = False
    fixed: Callable[[Call], Any] | None = None

    def step(self, call: Call) -> Step | None:
        """The operator with what must not follow a cut; None if a cut network need not run it at this point."""
        if self.fixed is None or call.name in _COPIES:
            return None
        return call.name.removesuffix("_"), self.fixed(call)


Step = tuple[str, Any]
STANDS_IN = "_lcprune_stands_in"  # for a constant that the code keeps on another device
_COPIES = frozenset({"aten::_to_copy", "aten::clone", "aten::copy", "aten::copy_", "aten::fill", "aten::fill_"})
_RULES: dict[str, Rule] = {}


def rule(
    *names: str,
    mixes: bool = False,
    contracts: bool = False,
    always: bool = False,
    uneven: bool = False,
    fixed: Callable[[Call], Any] | None = None,
) -> Callable[[Apply], Apply]:
    """Register a rule for operators by name; in-place variants are found by the same name."""

    def register(apply: Apply) -> Apply:
        for name in names:
            full = name if "::" in name else f"aten::{name}"
            if full in _RULES:
                raise ValueError(f"operator {full} has a rule already")
            _RULES[full] = Rule(apply, mixes, contracts, always, uneven, fixed)
        return apply

    return register


@cache
def find_rule(func: Any) -> Rule:
    """The rule of an operator: by name, by being element-wise, or the one that freezes."""
    name = str(func._schema.name)
    for candidate in (name, name.removesuffix("_")):
        if candidate in _RULES:
            return _RULES[candidate]
    if torch.Tag.pointwise in func.tags:
        return _RULES["lcprune::elementwise"]
    return _RULES["lcprune::unknown"]


@rule("lcprune::unknown", uneven=True)
def _unknown(run: LabelPass, call: Call, out: Any) -> Outcome:
    for labels in call.labels:
        for layer in labels.layers:
            run.freeze(layer, f"operator {call.name} is not described")
    return Labels(weight=call.weight)
