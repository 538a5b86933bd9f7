"""MACs, parameters and activations as polynomials of kept counts.

A convolution costs (kept in) x (kept out) x constant, and both factors are sums of group counts. So a cost is
a sum of products of *axes*, an axis being a weight dimension's length as a linear form of the kept counts.
Built once per network, evaluated in microseconds, exact (integers below 2**53 in float64).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Axis:
    """The length of one dimension: `fixed + sum(count[group] * multiplicity)`."""

    fixed: int  # the part that never goes
    parts: tuple[tuple[int, int], ...] = ()  # (group position, multiplicity) pairs, sorted by group


@dataclass(frozen=True)
class Term:
    """`coefficient * product of axes`."""

    coefficient: float
    axes: tuple[Axis, ...]

    def value(self, counts: Sequence[int] | NDArray[np.int64]) -> float:
        """At these kept counts."""
        lengths = (axis.fixed + sum(counts[group] * times for group, times in axis.parts) for axis in self.axes)
        return float(self.coefficient * math.prod(lengths))


@dataclass(frozen=True)
class LayerCost:
    """What one convolution or linear layer costs."""

    name: str  # of the module
    width: Term  # the channels that it gives
    macs: tuple[Term, ...]  # multiply-adds of one sample, one term each time that it runs
    params: tuple[Term, ...]  # of the module itself, one term per parameter

    def at(self, counts: NDArray[np.int64]) -> tuple[int, int, int]:
        """Channels, multiply-adds and parameters at these kept counts."""
        macs, params = (round(sum(term.value(counts) for term in terms)) for terms in (self.macs, self.params))
        return round(self.width.value(counts)), macs, params


class _Polynomial:
    """A sum of terms, arranged for evaluation as one matrix product and one gather per degree."""

    def __init__(self, terms: Iterable[Term], groups: int) -> None:
        merged: dict[tuple[Axis, ...], float] = {}
        for term in terms:
            # Constant axes go into the coefficient; equal products are added up once.
            moving = [axis for axis in term.axes if axis.parts]
            key = tuple(sorted(moving, key=lambda axis: (axis.parts, axis.fixed)))
            constant = math.prod(axis.fixed for axis in term.axes if not axis.parts)
            merged[key] = merged.get(key, 0) + term.coefficient * constant
        position = {Axis(1): 0}
        for key in merged:
            for axis in key:
                position.setdefault(axis, len(position))
        self.matrix = np.zeros((groups, len(position)))
        self.offset = np.array([axis.fixed for axis in position], dtype=np.float64)
        for axis, column in position.items():
            for group, multiplicity in axis.parts:
                self.matrix[group, column] = multiplicity
        # Of each product the columns of its axes; those of lower degree are filled up with ones.
        self.columns = np.zeros((max([1, *map(len, merged)]), len(merged)), dtype=np.int64)
        for place, key in enumerate(merged):
            self.columns[: len(key), place] = [position[axis] for axis in key]
        self.coefficients = np.array(list(merged.values()), dtype=np.float64)

    def __call__(self, counts: Any) -> Any:
        lengths = np.asarray(counts, dtype=np.float64) @ self.matrix + self.offset
        product = lengths[..., self.columns[0]]
        for columns in self.columns[1:]:
            product = product * lengths[..., columns]
        total = product @ self.coefficients
        return float(total) if total.ndim == 0 else total


class Cost:
    """Costs of a network as functions of how many units each group keeps.

    Args:
        names: group names, in the order of the counts.
        sizes: units per group.
        macs: terms of the convolution and linear multiply-adds of one sample.
        params: terms of the number of parameters.
        activations: terms of the number of elements that convolution and linear layers write for one sample.
        layers: the same layer by layer, in network order; for people.

    Attributes:
        layers: as given, each with what it costs while nothing is cut.
        largest: elements of the largest of these outputs, while nothing is cut.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        macs: Iterable[Term],
        params: Iterable[Term],
        activations: Iterable[Term] = (),
        layers: Iterable[LayerCost] = (),
    ) -> None:
        self.names = tuple(names)
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self._macs = _Polynomial(macs, len(self.names))
        self._params = _Polynomial(params, len(self.names))
        self.layers = tuple((layer, layer.at(self.sizes)) for layer in layers)
        activations = list(activations)
        self._activations = _Polynomial(activations, len(self.names))
        self.largest = max((term.value(self.sizes) for term in activations), default=0.0)

    def __repr__(self) -> str:
        return f"Cost({self.macs(self.sizes):,.0f} MACs, {self.params(self.sizes):,.0f} parameters, whole)"

    def macs(self, counts: Any) -> Any:
        """Multiply-adds of one sample.

        Args:
            counts: kept units per group, (groups,) or (candidates, groups).

        Returns:
            A float, or one per candidate; always a whole number.
        """
        return self._macs(counts)

    def params(self, counts: Any) -> Any:
        """Number of parameters; `counts` as for `macs`."""
        return self._params(counts)

    def activations(self, counts: Any) -> Any:
        """Elements written by convolution and linear layers for one sample; `counts` as for `macs`."""
        return self._activations(counts)
