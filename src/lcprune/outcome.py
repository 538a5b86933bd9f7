"""What pruning gives back, and keeping each round of Algorithm 1 on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lcprune.copies import copy_of
from lcprune.errors import ConfigError, PlanError
from lcprune.files import write_json
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.limit import LatencyOutcome
from lcprune.plan import Plan
from lcprune.repairs import NONE, Repair, expand, mend
from lcprune.search import Record, read_records
from lcprune.storage import load, save
from lcprune.summary import headline, plan_html
from lcprune.verification import verify


@dataclass(frozen=True, eq=False)
class PruneStep:
    """One round of Algorithm 1.

    Attributes:
        limits: what the network might cost after it, in absolute numbers.
        plan: what was kept, of the network before the first step.
        history: the search of this step.
    """

    limits: dict[str, float]
    plan: Plan
    history: list[Record] = field(default_factory=list, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class PruneResult:
    """A smaller network and how it came about.

    Attributes:
        model: a new, physically smaller network; the one passed in is untouched.
        plan: what was kept; applies to a freshly built network.
        history: the (last) search, one record per candidate; empty for methods that do not search.
        steps: the rounds of Algorithm 1; one for a single cut.
        seconds: where the time of the (last) search went.
        latency: limit, prediction and measurement, if there was a latency limit.
        whole: the network that was cut: the one passed in, or the one that a method with training made of it.
        repair: what was done to the cut network, if it was repaired; `plan.apply(whole)` is the network as cut.
    """

    model: nn.Module
    plan: Plan
    history: list[Record]
    steps: tuple[PruneStep, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    latency: LatencyOutcome | None = None
    whole: nn.Module | None = None
    repair: Repair | None = None

    def __repr__(self) -> str:
        parts = [f"{type(self.model).__name__}: {headline(self.plan)}"]
        if self.repair is not None:
            parts.append(f"repair {self.repair.how}")
        if self.history:
            parts.append(f"{len(self.history)} candidates searched")
        return f"PruneResult({', '.join(parts)}; summary() has the layers)"

    def _repr_html_(self) -> str:
        return plan_html(self.plan)

    def summary(self) -> str:
        """What every layer had and has, what is saved, and what stays and why, as text: `plan.summary()`."""
        return self.plan.summary()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the network as `lcprune.save` does: `lcprune.load` and every command take the folder."""
        save(folder, self.model, self.plan)


def check(graph: ChannelGraph, plan: Plan, smaller: nn.Module | None, result: Any) -> None:
    """Prove a plan's surgery.

    Args:
        graph: of the network.
        plan: made from it.
        smaller: the cut network; None cuts it again.
        result: what the error carries, so that nothing is lost after a long search.

    Raises:
        PlanError: the smaller network does not compute what the silenced one does, or nothing that could be compared.
    """
    verification = verify(graph.model, plan, graph.example_inputs, smaller)
    if not verification.ok:
        reason = f"is off by {verification.max_error:.3g} from the original with the same units silenced"
        if not verification.compared and not verification.max_error:
            reason = (
                "cannot be checked: all outputs are zero or not finite (load trained weights, or other example inputs)"
            )
        error = PlanError(f"the smaller network {reason}, so it is not returned; what was found is in `error.result`")
        error.result = result
        raise error


def repaired(
    result: PruneResult,
    graph: ChannelGraph,
    samples: Sequence[tuple[Any, Any]],
    how: str,
    classes: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> PruneResult:
    """The result with its network repaired, and proved to be a cut of the repaired whole network.

    Args:
        result: a network as cut.
        graph: of the whole network.
        samples: images, as (input, target) pairs; targets are not looked at.
        how: as in `lcprune.repair`.
        classes: likewise.
        seed: of the images that are drawn.
        progress: show a bar.

    Raises:
        PlanError: the repaired network does not compute what it should.
    """
    if how == NONE:
        return result
    model, done = mend(
        graph.model, result.plan, result.model, samples, how, classes=classes, seed=seed, progress=progress
    )
    plan = result.plan.with_meta(repair=done.to_json())
    found = replace(result, model=model, plan=plan, repair=done)
    if done.how != NONE:
        check(replace(graph, model=expand(graph.model, plan, model)), plan, model, found)
    return found


def compose(kept: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """Units of the first network that are left when `further` is kept of what `kept` left."""
    composed = {name: np.asarray(units) for name, units in kept.items()}
    for name, units in further.items():
        if name not in composed or (len(units) and max(units) >= len(composed[name])):
            raise PlanError(f"group {name!r} of the cut network is not one of the network before it")
        composed[name] = composed[name][np.asarray(units, dtype=np.int64)]
    return composed


def save_step(folder: Path | None, config: dict[str, Any], model: nn.Module, plan: Plan) -> None:
    """Write a round's network, plan and, last, the mark that it is complete."""
    if folder is not None:
        save(folder, model, plan)
        write_json(folder / "step.json", config)


def load_step(folder: Path | None, config: dict[str, Any], first: ChannelGraph) -> tuple[nn.Module, PruneStep] | None:
    """A round's network, if it was completed with this configuration.

    Raises:
        ConfigError: it was made with another one.
    """
    if folder is None or not (folder / "step.json").exists():
        return None
    stored = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    if stored != json.loads(json.dumps(config)):
        differences = [
            f"{key}: {stored.get(key)!r} then, {value!r} now"
            for key, value in config.items()
            if stored.get(key) != value
        ]
        raise ConfigError(
            f"{folder} was made with other settings ({'; '.join(differences)}); use the same ones to go on, "
            "or name another folder to start again"
        )
    records = folder / "search.jsonl"
    history = read_records(records)[1] if records.exists() else []
    step = PruneStep(config["limits"], Plan.load(folder / "plan.json"), history)
    return load(folder, copy_of(first.model)), step
