"""Pruning one network in several ways, tuning each result, and recording everything.

`prune`, `pareto`, `compare` and `demo` are all studies: they differ in which networks they ask for. A study that
was stopped goes on where it was: finished networks are not made again, an unfinished search or tuning is
continued.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from lcprune.batches import draw
from lcprune.choosing import methods
from lcprune.copies import copy_of
from lcprune.data import AnyData
from lcprune.engine import Engine, Job, LocalEngine
from lcprune.evaluate import Evaluation
from lcprune.framework import prune
from lcprune.graph import ChannelGraph
from lcprune.outcome import PruneResult, repaired
from lcprune.plan import Plan
from lcprune.repairs import AUTO, IMAGES, NONE, STAND_INS, mend
from lcprune.runs import PLAN, Row, RunFolder
from lcprune.score import score_row
from lcprune.search import Search
from lcprune.storage import load, save
from lcprune.study.job import ORIGINAL, NetworkJob, cost_row, epoch_rows, row_folder
from lcprune.study.networks import Network
from lcprune.tune import Recipe, evaluate, fit

logger = logging.getLogger("lcprune")


@dataclass(eq=False)
class Study:
    """One network under study.

    Attributes:
        dataset: for searching (training images), tuning, and judging (test images); None for cuts without.
        recipe: how to tune; None for not at all.
        options: method -> settings of its own.
        evaluation: how networks are judged while one is chosen.
        repair: how cut networks are repaired, where there is a data set.
    """

    run: RunFolder
    network: Network
    graph: ChannelGraph
    dataset: AnyData | None = None
    recipe: Recipe | None = None
    search: Search = field(default_factory=Search)
    metric: str = "auto"
    min_keep: float = 0.10
    multiple_of: int | None = None
    progress: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    engine: Engine = field(default_factory=LocalEngine)
    evaluation: Evaluation = field(default_factory=Evaluation)
    repair: str = AUTO

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.device

    def make(self, job: NetworkJob) -> Row:
        """Make one network, unless it is complete: prune, tune, judge and record it. Its row of results."""
        found = self.done(job)
        if found is not None:
            logger.info("%s: done before", job.title)
            return found
        if job.method == ORIGINAL:
            row = {"network": ORIGINAL, "method": ORIGINAL, "limit": None, "seed": 0}
            row |= cost_row(self.graph, self.graph) | self._judge(self.network.model) | self._score()
            self.run.add("results", row)
            return row
        if job.plan is not None:
            return self._finish(job, self.network.model)
        return self._finish(*self.choose(job))

    def choose(self, job: NetworkJob) -> tuple[NetworkJob, nn.Module]:
        """Prune; the job with its plan, and the network that was cut, whose weights the method may have changed."""
        logger.info("%s: pruning", job.title)
        folder = self.run.file(job.folder)
        started = time.perf_counter()
        own = {"search": self.search} if job.method == "lcp" else self.options.get(job.method)
        result = prune(
            self.graph,
            method=methods.make(job.method, own),
            metric=self.metric,
            data=replace(self.evaluation, data=self.batches(job.seed)),
            repair=NONE,  # as this study does it for every network, whoever chose it
            min_keep=self.min_keep,
            multiple_of=self.multiple_of,
            seed=job.seed,
            run=Job(folder, folder.exists(), self.engine, networks=False),
            progress=self.progress,
            **job.limits,
        )
        seconds = time.perf_counter() - started
        made = replace(job, plan=result.plan, history=result.history, seconds=seconds)
        return made, result.whole or self.network.model

    def _finish(self, job: NetworkJob, whole: nn.Module) -> Row:
        """Cut, repair, tune, judge, save and record a network."""
        made = PruneResult(job.plan.apply(whole), job.plan, [], whole=whole)
        judged = self._judge(made.model)
        row = job.plan_row(self.graph) | {f"{name}_before": value for name, value in judged.items()} | judged
        row |= self._score()
        if self.dataset is not None and self.repair != NONE:
            graph, samples = replace(self.graph, model=whole), self.samples(job.seed)
            classes = self.dataset.classifies
            made = repaired(made, graph, samples, self.repair, classes, job.seed, self.progress)
        model = made.model
        if made.repair is not None:
            job, judged = replace(job, plan=made.plan), self._judge(model)
            row |= {"repair": made.repair.how} | {f"{name}_repaired": value for name, value in judged.items()} | judged
        epochs: list[Row] = []
        if self.recipe is not None and self.dataset is not None:
            model = self.start(job, whole, made)
            epochs = [{**entry, **job.tag} for entry in self.tune(job, model)]
            row |= self._judge(model)
        save(self.run.file(job.folder), model, job.plan)
        self.add_once("schedule", job.name, job.kept_rows(self.graph))
        self.add_once("search", job.name, job.search_rows())
        self.add_once("training", job.name, epochs)
        # The row goes last: it says that this network is complete.
        self.run.add("results", row)
        return row

    def samples(self, seed: int) -> list[tuple[Any, Any]]:
        """Training images to repair with."""
        return draw(self.batches(seed), IMAGES, seed)

    def start(self, job: NetworkJob, whole: nn.Module, made: PruneResult | None = None) -> nn.Module:
        """The network that tuning begins with.

        With `repair="auto"` that is stand-ins: they take least time, and no start has been shown to tune better
        (`docs/repair.md`).
        """
        how = STAND_INS if self.repair == AUTO else self.repair
        if made is not None and how == self.repair:
            return made.model
        cut, samples = job.plan.apply(whole), [] if how == NONE else self.samples(job.seed)
        logger.info("%s: tuning begins with repair=%r", job.title, how)
        classes = self.dataset is not None and self.dataset.classifies
        return mend(whole, job.plan, cut, samples, how, classes=classes, seed=job.seed, progress=self.progress)[0]

    def tune(self, job: NetworkJob, model: nn.Module) -> list[Row]:
        """Train a pruned network in place; returns one row per epoch."""
        assert self.recipe is not None and self.dataset is not None
        recipe = replace(self.recipe, seed=self.recipe.seed + job.seed)
        logger.info("%s: tuning for %d epochs", job.title, recipe.epochs)
        result = fit(
            model,
            self.dataset,
            recipe,
            run_dir=self.run.file(job.folder, "tuning"),
            resume=True,
            teacher=self.teacher(),
            progress=self.progress,
            device=self.device,
        )
        model.eval()
        return epoch_rows(job.name, result.history, self.dataset.compared_by)

    def teacher(self) -> nn.Module | None:
        """The network to imitate while tuning, if the recipe wants one."""
        return copy_of(self.network.model) if self.recipe is not None and self.recipe.distill > 0 else None

    def batches(self, seed: int) -> Any:
        """Training images for metrics and search, drawn with the seed."""
        if self.dataset is None:
            return None
        return self.dataset.batches("train", 128, limit=self.evaluation.images, seed=seed, device=self.device)

    def keep(self, row: Mapping[str, Any]) -> None:
        """Make one network the run's own: its plan and weights go to the top of the folder."""
        save(self.run.path, self.model_of(row), Plan.load(self.run.file(row_folder(row), PLAN)))

    def model_of(self, row: Mapping[str, Any]) -> nn.Module:
        """A finished network, from its folder."""
        if row["method"] == ORIGINAL:
            return self.network.model
        folder = self.run.file(row_folder(row))
        return load(folder, copy_of(self.network.model)).to(self.device).eval()

    def done(self, job: NetworkJob) -> Row | None:
        """The row of a network that is complete."""
        rows = self.run.records("results")
        return next((row for row in rows if (row["network"], row["seed"]) == (job.name, job.seed)), None)

    def add_once(self, kind: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record rows of a network, unless it has some."""
        # The first trial stands for the others; and a run that was stopped between two files goes on here.
        if rows and not any(row.get("network") == name for row in self.run.records(kind)):
            self.run.add(kind, *rows)

    def _judge(self, model: nn.Module) -> Row:
        if self.dataset is None or not self.dataset.labelled:
            return {}
        return judge(model, self.dataset, self.device)

    def _score(self) -> Row:
        return {} if self.dataset is None else dict(score_row(self.dataset.compared_by))


def judge(model: nn.Module, dataset: AnyData, device: torch.device) -> Row:
    """Loss and score, by its name, on the test images; on the validation images where there are no others."""
    found = evaluate(model, dataset, "test" if dataset.test else "val", device=device)
    score = found.score if math.isfinite(found.score) else None
    return {"loss": found.loss, dataset.compared_by.name: score}
