"""One pruning task: what a method is given to choose from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune.batches import alone, call, collate, fingerprint
from lcprune.copies import copy_to_run
from lcprune.engine import Engine, LocalEngine
from lcprune.errors import ConfigError, DataError
from lcprune.evaluate import DISTANCE, DIVERGENCE, REPAIR, Evaluation, Evaluator, answered, measured, parted
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.repairs.distance import scores_classes
from lcprune.repairs.quick import QuickRepair
from lcprune.repairs.shares import lost_shares
from lcprune.scoring import Metric, metrics
from lcprune.scoring.rebuilt import rebuilt_by
from lcprune.search import Record, SearchRecords
from lcprune.select import Kept, Limits, Ranking
from lcprune.sensitivity import moved

if TYPE_CHECKING:
    from lcprune.data import Dataset


@dataclass(frozen=True, eq=False)
class Task:
    """A network, a limit and what a method may use to choose units; costly parts are made on demand.

    Attributes:
        graph: of the network to be pruned.
        limits: what the result may cost.
        metric: name or function.
        samples: (input, target) pairs of the drawn images; None if there is no data.
        evaluation: how networks are judged on them.
        min_keep: share of every group that stays.
        multiple_of: widths are multiples of this.
        seed: of everything random.
        progress: show bars.
        records: file for the search's records, or None.
        resume: go on from that file.
        floors: units of each group that stay, where these are more than `min_keep` asks for (later steps of
            Algorithm 1, whose floor is that of the network before the first one).
        dataset: the data set that the images come from, for methods that train; None if there is only `samples`.
        engine: where candidates are judged.
    """

    graph: ChannelGraph
    limits: Limits
    metric: str | Callable[..., Any] = "l2"
    samples: Sequence[tuple[Any, Any]] | None = field(default=None, repr=False)
    evaluation: Evaluation = field(default_factory=Evaluation)
    min_keep: float = 0.10
    multiple_of: int = 1
    seed: int = 0
    progress: bool = False
    records: Path | None = None
    resume: bool = False
    floors: NDArray[np.int64] | None = None
    dataset: Dataset | None = None
    engine: Engine = field(default_factory=LocalEngine)

    def but(
        self,
        *,
        limits: Limits | None = None,
        records: Path | None = None,
        seed: int | None = None,
        metric: str | Callable[..., Any] | None = None,
        scores: list[NDArray[np.float64]] | None = None,
    ) -> Task:
        """This task, changed in what is given; what it has computed and what still holds goes along.

        `dataclasses.replace` starts with nothing computed.

        Args:
            limits: other ones.
            records: another file.
            seed: of the search; scores stay those of the first seed.
            metric: another one.
            scores: to rank by instead of the metric's own.
        """
        changes: dict[str, Any] = {"limits": limits, "records": records, "seed": seed, "metric": metric}
        other = replace(self, **{name: value for name, value in changes.items() if value is not None})
        known = {name: value for name, value in vars(self).items() if name in _COMPUTED}
        others = scores is not None and scores is not known.get("scores")
        if others or other.metric != self.metric:
            known = {name: value for name, value in known.items() if name not in _BY_SCORES}
        if scores is not None:
            known["scores"] = scores
        vars(other).update(known)
        return other

    @cached_property
    def scores(self) -> list[NDArray[np.float64]]:
        """The metric of every unit, one array per group."""
        if self.metric == "rebuilt" and self.quick is not None:  # measured already
            quick = self.quick
            return metrics.score(self.graph, Metric("rebuilt", lambda graph: rebuilt_by(quick, graph)))
        named = isinstance(self.metric, str)
        wanted = self.samples is not None and not (named and not metrics.get(str(self.metric)).needs_data)
        data = self.batches if wanted else None
        return metrics.score(self.graph, self.metric, data, self.loss_fn, seed=self.seed, progress=self.progress)

    @cached_property
    def ranking(self) -> Ranking:
        """Units sorted by score, ready to be cut."""
        return self.rank(self.scores)

    @cached_property
    def judged(self) -> tuple[Sequence[tuple[Any, Any]], Evaluation]:
        """The drawn images with the targets that candidates are judged by, and how.

        A repaired classifier is judged by how close it is to the whole network, unless the user gives a loss: the whole
        network does not have the least loss that labels allow, and a candidate that is surer of itself is no better.

        Raises:
            DataError: no data was given.
        """
        closest = self.evaluation.loss_fn is None and self.evaluation.after == REPAIR and self._scores_classes
        return self._judged_by(DIVERGENCE if closest else self.evaluation.loss_fn)

    @cached_property
    def shown(self) -> tuple[Sequence[tuple[Any, Any]], Evaluation]:
        """The drawn images and the loss that a user is shown: that of the labels, where there are some.

        Raises:
            DataError: no data was given.
        """
        return self._judged_by(self.evaluation.loss_fn)

    def _judged_by(self, loss_fn: Any) -> tuple[Sequence[tuple[Any, Any]], Evaluation]:
        if loss_fn in (DISTANCE, DIVERGENCE) or (loss_fn is None and not self.labelled):
            samples, distance = answered(self.graph.model, self.need_images(), loss_fn == DIVERGENCE)
            return samples, replace(self.evaluation, loss_fn=distance)
        return self.need_labels(), self.evaluation

    @property
    def _scores_classes(self) -> bool:
        """Whether the loss is cross-entropy, and the network gives one row of scores for each image."""
        if not self.classes:
            return False
        [batch] = collate(alone(self.need_images()[:2]), 2, next(self.graph.model.parameters()).device)
        with torch.no_grad():
            return scores_classes(call(copy_to_run(self.graph.model), batch.inputs), batch.size)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Judges selections on the drawn images."""
        return self.engine.evaluator(self.graph, *self.judged, quick=self.quick)

    @cached_property
    def quick(self) -> QuickRepair | None:
        """What gives candidates their stand-ins; None where they get none."""
        if self.evaluation.after != REPAIR:
            return None
        fitted, _ = parted(self.need_images(), self.evaluation)
        return measured(self.graph, collate(alone(fitted), 128, next(self.graph.model.parameters()).device))

    @cached_property
    def shares(self) -> list[NDArray[np.float64]]:
        """What the readers of each group lose with 0, 1, 2 ... of its best units left; candidates are repaired."""
        assert self.quick is not None
        return lost_shares(self.quick, self.graph, self.scores)

    @cached_property
    def moved(self) -> list[NDArray[np.float64]]:
        """How far outputs move then; one width of each group is measured."""
        return moved(self, self.shares)

    @property
    def loss_fn(self) -> Callable[[Any, Any], torch.Tensor]:
        """`loss_fn(output, target)` of labelled images, a mean over the batch; it refuses images without labels."""
        return self.evaluation.loss if self.samples is None or self.labelled else _no_labels

    @property
    def classes(self) -> bool:
        """Whether outputs are scores of classes: so the loss says."""
        given, loss = self.evaluation.loss_fn, self.evaluation.loss
        if isinstance(given, str):
            return given == DIVERGENCE
        return self.labelled and (loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss))

    @property
    def labelled(self) -> bool:
        """Whether there are images with targets."""
        return self.samples is not None and self.samples[0][1] != ()

    @property
    def metric_name(self) -> str:
        """The metric's name, or that of the function."""
        return self.metric if isinstance(self.metric, str) else getattr(self.metric, "__name__", "custom")

    @property
    def batches(self) -> list[tuple[Any, Any]]:
        """The drawn images as plain (input, target) batches on the network's device; without labels, () is a target."""
        device = next(self.graph.model.parameters()).device
        return [(batch.inputs, batch.target) for batch in collate(self.need_images(), 128, device)]

    @property
    def absolute_limits(self) -> dict[str, float]:
        """What is limited -> the most it may be; empty without limits."""
        return {bound.name: bound.value for bound in self.limits.bounds(self.graph.cost)} if self.limits else {}

    def rank(self, scores: Sequence[NDArray[np.float64]], floors: NDArray[np.int64] | None = None) -> Ranking:
        """Units sorted by other scores, or with other floors; otherwise as `ranking`."""
        own = self.floors if floors is None else floors
        return Ranking(scores, self.graph.cost, self.min_keep, self.multiple_of, own)

    def need_images(self) -> Sequence[tuple[Any, Any]]:
        """The drawn images, with targets or without.

        Raises:
            DataError: no data was given.
        """
        if self.samples is None:
            raise DataError("this method needs images: pass data=, an iterable of (input, target) or input batches")
        return self.samples

    def need_labels(self) -> Sequence[tuple[Any, Any]]:
        """The drawn images, which have targets.

        Raises:
            DataError: no data was given, or none with targets.
        """
        samples = self.need_images()
        return samples if self.labelled else _no_labels()

    def open_records(self, **more: Any) -> SearchRecords:
        """The records of this task's search, with the configuration that they belong to."""
        if self.records is None:
            return SearchRecords(None, {})
        return SearchRecords(self.records, self.config(**more), self.resume)

    def config(self, **more: Any) -> dict[str, Any]:
        """What this task is, as plain JSON: a search goes on only with the very same."""
        groups = dict(zip(self.graph.cost.names, self.graph.cost.sizes.tolist(), strict=True))
        return {"limits": self.absolute_limits, "groups": groups, **self.settings(), **more}

    def settings(self) -> dict[str, Any]:
        """What the network, the data and the user's settings are, as plain JSON; not the limits."""
        how = plain_fields(self.evaluation, "evaluation")
        del how["evaluation.data"]
        return {
            "weights": weights_fingerprint(self.graph.model),
            "images": None if self.samples is None else fingerprint(self.samples),
            "metric": _plain(self.metric),
            "min_keep": self.min_keep,
            "multiple_of": self.multiple_of,
            "seed": self.seed,
            **how,
        }


def _no_labels(*_: Any) -> Any:
    raise DataError("this needs labelled images, so inputs alone are not enough: give (input, target) batches")


_BY_SCORES = ("scores", "ranking", "shares", "moved")
_COMPUTED = (*_BY_SCORES, "judged", "shown", "quick", "evaluator")


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
        scores: that units were ranked by, where a search that goes on has brought its own; None for the task's.
    """

    kept: Kept
    history: list[Record] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    model: nn.Module | None = None
    scores: list[NDArray[np.float64]] | None = None


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


def plain_fields(settings: Any, prefix: str) -> dict[str, Any]:
    """The fields of a dataclass as plain JSON, `prefix.name` each; those of a dataclass inside it, too."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        value, name = getattr(settings, item.name), f"{prefix}.{item.name}"
        found.update(plain_fields(value, name) if is_dataclass(value) else {name: _plain(value)})
    return found
