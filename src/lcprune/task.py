"""One pruning task: what a method is given to choose from."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.errors import ConfigError, DataError
from lcprune.evaluate import Evaluator, collate, fingerprint, guessing_loss, make_evaluator, statistics_of
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.scoring import metrics
from lcprune.search import Record, Records, Search, read_records
from lcprune.select import Kept, Limits, Ranking

if TYPE_CHECKING:
    from lcprune.data import Dataset
    from lcprune.engine import Engine


@dataclass(eq=False)
class Task:
    """A network, a limit and what a method may use to choose units; costly parts are made on demand.

    Attributes:
        graph: of the network to be pruned.
        limits: what the result may cost.
        metric: name or function.
        samples: (input, target) pairs of the drawn images; None if there is no data.
        loss_fn: `loss_fn(output, target)`, a mean over the batch.
        min_keep: share of every group that stays.
        multiple_of: widths are multiples of this.
        seed: of everything random.
        search: settings of a learning method.
        schedule: group name or pattern -> share to keep, for the method "schedule".
        progress: show bars.
        records: file for the search's records, or None.
        resume: go on from that file.
        floors: units of each group that stay, where these are more than `min_keep` asks for (later steps of
            Algorithm 1, whose floor is that of the network before the first one).
        options: the method's own settings; None for its defaults.
        engine: where candidates are judged; None judges them here.
        dataset: the data set that the images come from, for methods that train; None if there is only `samples`.
    """

    graph: ChannelGraph
    limits: Limits
    metric: str | Callable[..., Any] = "l2"
    samples: Sequence[tuple[Any, Any]] | None = None
    loss_fn: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy
    min_keep: float = 0.10
    multiple_of: int = 1
    seed: int = 0
    search: Search = field(default_factory=Search)
    schedule: Mapping[str, float] | None = None
    progress: bool = False
    records: Path | None = None
    resume: bool = False
    floors: NDArray[np.int64] | None = None
    options: Any = None
    dataset: Dataset | None = None
    engine: Engine | None = None

    @cached_property
    def scores(self) -> list[NDArray[np.float64]]:
        """The metric of every unit, one array per group."""
        named = isinstance(self.metric, str)
        wanted = self.samples is not None and not (named and not metrics.get(str(self.metric)).needs_data)
        data = self.batches if wanted else None
        return metrics.score(self.graph, self.metric, data, self.loss_fn, seed=self.seed, progress=self.progress)

    @cached_property
    def ranking(self) -> Ranking:
        """Units sorted by score, ready to be cut."""
        return make_ranking(self.scores, self.graph, self.min_keep, self.multiple_of, self.floors)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Judges selections on the drawn images."""
        make = make_evaluator if self.engine is None else self.engine.evaluator
        return make(self.graph, self.need_samples(), self.loss_fn, self.search)

    @cached_property
    def guess(self) -> float | None:
        """Loss of guessing, by which `search.recalibrate="auto"` is decided; None where nothing is to be decided."""
        search, model = self.search, self.graph.model
        # Where the user says how candidates are prepared, that is all that is done to them.
        if search.recalibrate != "auto" or search.prepares or not statistics_of(model) or len(self.need_samples()) < 2:
            return None
        batches = collate(self.need_samples(), 128, next(model.parameters()).device)
        return guessing_loss(copy.deepcopy(model).eval(), batches, self.loss_fn)

    @property
    def metric_name(self) -> str:
        """The metric's name, or that of the function."""
        return self.metric if isinstance(self.metric, str) else getattr(self.metric, "__name__", "custom")

    @property
    def batches(self) -> list[tuple[Any, Any]]:
        """The drawn images as plain (input, target) batches on the network's device."""
        device = next(self.graph.model.parameters()).device
        return [(batch.inputs, batch.target) for batch in collate(self.need_samples(), 128, device)]

    def need_samples(self) -> Sequence[tuple[Any, Any]]:
        """The drawn images.

        Raises:
            DataError: no data was given.
        """
        if self.samples is None:
            raise DataError("this method judges networks by their loss: pass data=, an iterable of (input, target)")
        return self.samples

    def open_records(self, **more: Any) -> Records:
        """The records of this task's search, with the configuration that they belong to."""
        if self.records is None:
            return Records(None, {})
        return Records(self.records, self.config(**more), self.resume)

    def recorded(self, name: str) -> Any:
        """What the records of a search that goes on say of its configuration; None where there are none."""
        if not self.resume or self.records is None or not self.records.is_file():
            return None
        return read_records(self.records)[0].get("config", {}).get(name)

    def config(self, **more: Any) -> dict[str, Any]:
        """What this task is, as plain JSON: a search goes on only with the very same."""
        return {
            "limits": {bound.name: bound.value for bound in self.limits.bounds(self.graph.cost)},
            "groups": dict(zip(self.graph.cost.names, self.graph.cost.sizes.tolist(), strict=True)),
            **self.settings(),
            **more,
        }

    def settings(self) -> dict[str, Any]:
        """What the network, the data and the user's settings are, as plain JSON; not the limits."""
        search = {f"search.{name}": value for name, value in _plain_fields(self.search).items()}
        # One at a time is said by silence, as in records that were written before there was a choice.
        if search["search.together"] in (None, 1):
            del search["search.together"], search["search.asynchronous"]
        if not search["search.redraw"]:
            del search["search.redraw"]
        return {
            "weights": weights_fingerprint(self.graph.model),
            "images": None if self.samples is None else fingerprint(self.samples),
            "metric": _plain(self.metric),
            "loss_fn": _plain(self.loss_fn),
            "min_keep": self.min_keep,
            "multiple_of": self.multiple_of,
            "seed": self.seed,
            "schedule": None if self.schedule is None else dict(self.schedule),
            "options": None if self.options is None else _plain_fields(self.options),
            **search,
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """What a method chose.

    Attributes:
        kept: units of each group that stay.
        history: the search, one record per candidate; empty for methods that do not search.
        meta: how it was found, as plain JSON; goes into the plan.
        seconds: where the time went, e.g. planning, preparing, evaluating.
        model: for methods that change weights, the network that is to be cut instead of the task's own: the same
            architecture, full size.
    """

    kept: Kept
    history: list[Record] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    model: nn.Module | None = None


def make_ranking(
    scores: Sequence[NDArray[np.float64]],
    graph: ChannelGraph,
    min_keep: float,
    multiple_of: int,
    floors: NDArray[np.int64] | None = None,
) -> Ranking:
    """A ranking of the graph's units; arguments as for `Ranking`."""
    return Ranking(scores, graph.cost, min_keep, multiple_of, floors)


def width_of(graph: ChannelGraph, multiple_of: int | None) -> int:
    """Of what kept widths are multiples: a whole number as given, or what suits the device if None.

    That is 8 on CUDA in half precision, whose matrix units want it, and 1 elsewhere.
    """
    if multiple_of is not None:
        if isinstance(multiple_of, bool) or not isinstance(multiple_of, (int, np.integer)) or multiple_of < 1:
            raise ConfigError(f"multiple_of={multiple_of!r}: give a whole number from 1 on, e.g. 8")
        return int(multiple_of)
    weight = next(graph.model.parameters())
    return 8 if weight.device.type == "cuda" and weight.element_size() == 2 else 1


def weights_fingerprint(model: nn.Module) -> str:
    """A short hash of a network's weights, by which records know the network they belong to."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)):
        return value
    return str(value)  # a path, a device


def _plain_fields(options: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(options, item.name)) for item in fields(options)}
