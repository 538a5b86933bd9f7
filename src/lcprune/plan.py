"""Plans: which units stay, what that costs, how it was found, and every cut that follows. JSON, no pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.copies import ORIGIN, named_tensors, trainable, unwrap
from lcprune.errors import PlanError
from lcprune.files import atomic_write
from lcprune.summary import headline, plan_html, plan_text
from lcprune.surgery import AttributeChange, cut

VERSION = 1
_FORMAT = "lcprune plan"
_COSTS = ("macs", "params", "original_macs", "original_params")


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Which units stay.

    Attributes:
        kept: group name -> kept unit indices.
        sizes: group name -> number of units before.
        macs: multiply-adds of one sample afterwards.
        params: parameters afterwards.
        original_macs: multiply-adds before.
        original_params: parameters before.
        cuts: weight name -> dimension -> kept positions, in their new order.
        changes: integers kept by modules that follow.
        shapes: weight name -> shape before, to recognise the network.
        meta: how the plan was found; anything that JSON can hold. `network` says what it was made for.
        layers: convolution or linear layer -> its channels, multiply-adds and parameters, each before and after.
        frozen: layer -> why it could not be cut.
    """

    kept: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    macs: int
    params: int
    original_macs: int
    original_params: int
    cuts: Mapping[str, Mapping[int, NDArray[np.int64]]]
    changes: Sequence[AttributeChange] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Plan({headline(self)}, {len(self.kept)} groups; summary() has the layers)"

    def _repr_html_(self) -> str:
        return plan_html(self)

    def summary(self) -> str:
        """What every layer has before and after, what is saved, and what stays and why, as text."""
        return plan_text(self)

    @trainable
    def apply(self, model: nn.Module) -> nn.Module:
        """Cut a freshly built (or trained) network of the same architecture.

        Args:
            model: the network; it is not changed.

        Returns:
            A new, physically smaller network.

        Raises:
            PlanError: if the plan was made for another network; the message names the first differences.
        """
        inner = unwrap(model)
        self._check(inner)
        smaller = cut(inner, self.cuts, self.changes)
        vars(smaller).pop(ORIGIN, None)
        return smaller

    def pruned_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weight name -> shape after the cut."""
        result = {}
        for name, shape in self.shapes.items():
            own = self.cuts.get(name, {})
            result[name] = tuple(len(own[dim]) if dim in own else length for dim, length in enumerate(shape))
        return result

    def with_meta(self, **more: Any) -> Plan:
        """The same plan with more said about how it was found."""
        return replace(self, meta={**self.meta, **more})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, atomically."""
        body = self._to_json()
        text = json.dumps({"format": _FORMAT, "version": VERSION, "sha256": _digest(body), **body}, indent=1)
        with atomic_write(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan.

        Raises:
            PlanError: if the file is missing, truncated, edited, or of another version.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"no plan can be read from {path}: {error}") from error
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"{path} is not a whole JSON file ({error}); write the plan again") from error
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise PlanError(f"{path} is JSON, but not a plan of lcprune")
        if value.get("version") != VERSION:
            raise PlanError(f"{path} has plan version {value.get('version')!r}; this lcprune reads version {VERSION}")
        body = {key: entry for key, entry in value.items() if key not in ("format", "version", "sha256")}
        if value.get("sha256") != _digest(body):
            raise PlanError(f"{path} was changed after it was written: its checksum does not fit; write the plan again")
        try:
            return cls._from_json(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"{path} lacks a part of a plan: {error!r}") from error

    def _check(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise PlanError(f"a torch.nn.Module is needed, not {type(model).__name__}")
        found = {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}
        differences = []
        for name, shape in self.shapes.items():
            if name not in found:
                differences.append(f"{name} is missing")
            elif found[name] != shape:
                differences.append(f"{name} has shape {list(found[name])}, the plan expects {list(shape)}")
        differences += [f"{name} is not in the plan" for name in found if name not in self.shapes]
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise PlanError(f"the plan was made for another network: {'; '.join(differences[:3])}{more}")

    def _to_json(self) -> dict[str, Any]:
        # Many weights share the same positions (a layer, its norm, its readers): each list is written once.
        lists: dict[tuple[int, ...], int] = {}

        def number(index: NDArray[np.int64]) -> int:
            return lists.setdefault(tuple(index.tolist()), len(lists))

        cuts = {name: {str(dim): number(index) for dim, index in own.items()} for name, own in self.cuts.items()}
        return {
            **{name: getattr(self, name) for name in _COSTS},
            "meta": dict(self.meta),
            "groups": {name: {"size": self.sizes[name], "kept": list(own)} for name, own in self.kept.items()},
            "positions": [list(entries) for entries in lists],
            "cuts": cuts,
            "attributes": [asdict(change) for change in self.changes],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "layers": {name: {key: list(pair) for key, pair in own.items()} for name, own in self.layers.items()},
            "frozen": dict(self.frozen),
        }

    @classmethod
    def _from_json(cls, body: Mapping[str, Any]) -> Plan:
        positions = [np.array(entries, dtype=np.int64) for entries in body["positions"]]
        return cls(
            kept={name: tuple(own["kept"]) for name, own in body["groups"].items()},
            sizes={name: own["size"] for name, own in body["groups"].items()},
            **{name: body[name] for name in _COSTS},
            cuts={
                name: {int(dim): positions[number] for dim, number in own.items()} for name, own in body["cuts"].items()
            },
            changes=tuple(AttributeChange(**change) for change in body["attributes"]),
            shapes={name: tuple(shape) for name, shape in body["shapes"].items()},
            meta=body["meta"],
            layers={n: {key: tuple(pair) for key, pair in own.items()} for n, own in body.get("layers", {}).items()},
            frozen=body.get("frozen", {}),
        )


def need_plan(plan: Any) -> Plan:
    """The plan; whatever else was given is refused."""
    if not isinstance(plan, Plan):
        raise PlanError(f"a lcprune.Plan is needed, not {type(plan).__name__}: lcprune.Plan.load(file) reads one")
    return plan


def _digest(body: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise PlanError(f"a plan's meta must be JSON: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()
