"""The table of operator rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lcprune.graph.labels import Labels, varying

if TYPE_CHECKING:
    from lcprune.graph.label_pass import LabelPass


class Call:
    """One executed operator with the labels of its tensors; `labels_of` gives a tensor's labels."""

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], labels_of: Callable[[Tensor], Labels]
    ) -> None:
        self.func, self.args, self.kwargs, self.labels_of = func, args, kwargs, labels_of
        self.leaves = list(_flat((*args, *kwargs.values())))
        self.tensors = [value for value in self.leaves if isinstance(value, Tensor)]
        self.labels = [labels_of(tensor) for tensor in self.tensors]
        self.labelled = any(labels.layers for labels in self.labels)
        self.uniform = all(labels.uniform for labels in self.labels)
        self.weight = bool(self.tensors) and all(labels.weight or labels.uniform for labels in self.labels)

    @property
    def name(self) -> str:
        """The operator's name, e.g. `aten::add_`."""
        return str(self.func._schema.name)

    @property
    def short(self) -> str:
        """The name without the library, e.g. `add_`."""
        return self.name.removeprefix("aten::")

    @property
    def inplace(self) -> bool:
        """Whether the operator writes into its first argument."""
        return self.name.endswith("_") and not self.name.endswith("__")

    @property
    def input(self) -> Tensor:
        """The first argument."""
        tensor: Tensor = self.args[0] if self.args else self.kwargs["self"]
        return tensor

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, wherever it was given."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def dims(self, position: int, default: Any = None) -> set[int]:
        """The dimensions that the argument `dim` names; all if it names none."""
        named = self.arg(position, "dim", default)
        if named is None or named == [] or isinstance(named, bool):  # overloads such as std(unbiased) name none
            return set(range(self.input.ndim))
        return {dim % max(self.input.ndim, 1) for dim in ([named] if isinstance(named, int) else named)}

    def dim(self, position: int, default: int = 0) -> int:
        """The one dimension that the argument `dim` names."""
        (dim,) = self.dims(position, default)
        return dim


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """The arguments of an operator, those in lists one by one; pytree's own way takes longer than most operators."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def freeze(run: LabelPass, labels: Iterable[Labels], reason: str) -> None:
    """Everything under these labels must stay."""
    for own in labels:
        for layer in own.layers:
            run.freeze(layer, reason)


def passing(run: LabelPass, labels: Labels, dims: Collection[int], reason: str) -> list[Tensor]:
    """The layers that do not vary along `dims`; the others must stay."""
    found = []
    for layer in labels.layers:
        if varying(layer).isdisjoint(dims):
            found.append(layer)
        else:
            run.freeze(layer, reason)
    return found


def is_mask(index: Any) -> bool:
    """Whether an index says of every element if it is wanted."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def plain_arguments(call: Call) -> Any:
    """All arguments but the tensors."""
    return [value for value in call.leaves if not isinstance(value, Tensor)]


def no_arguments(call: Call) -> Any:
    """Nothing: only the operator itself must be there."""
    return ()


Outcome: TypeAlias = "Labels | Sequence[Labels]"
Apply = Callable[["LabelPass", Call, Any], Outcome]


@dataclass(frozen=True)
class Rule:
    """How an operator treats labels."""

    apply: Apply  # gives the labels of the outputs
    mixes: bool = False  # elements along an axis influence one another (normalisation, reduction)
    contracts: bool = False  # an axis of the inputs is summed against a weight
    always: bool = False  # apply even if no input has labels
    uneven: bool = False  # equal elements may come out unequal (padding, concatenation, running sums)
    # The arguments that must not follow a cut, such as a convolution's stride. None for operators that may come and go
    # with sizes and strides, such as views and copies.
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
def unknown(run: LabelPass, call: Call, out: Any) -> Outcome:
    """Not described: everything that it touches stays."""
    freeze(run, call.labels, f"operator {call.name} is not described")
    return Labels(weight=call.weight)
