"""The networks of a study made elsewhere: each is one task on a machine of the cluster.

A task works in a folder of its own that is mirrored into the run folder: one that is run again, because its machine
died, goes on from the search records and the checkpoint that it had written. The last file, `outcome.json`, says that
the network is complete, and holds its records; the study adds these in the order in which networks were asked for.
"""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lcprune.engine import LocalEngine, RayEngine
from lcprune.engine.worker import own_device
from lcprune.errors import TuneError
from lcprune.files import write_json
from lcprune.mirror import Mirror
from lcprune.runs import RunFolder
from lcprune.search import Record
from lcprune.study.study import ORIGINAL, Study, label, slug, trial
from lcprune.tune import fit_fleet

logger = logging.getLogger("lcprune")

OUTCOME = "outcome.json"
_KINDS = ("schedule", "search", "training", "results")  # the row of results says that all is there


@dataclass(frozen=True, eq=False)
class NetworkJob:
    """One network to be made.

    Attributes:
        method: how, or "original" to judge the network as it is.
        limits: as for `lcprune.prune`.
        seed: of the trial.
        plan: what is kept, if that has been decided; the rest is to tune and judge.
        history: of the search that decided it.
        seconds: that this took.
    """

    method: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    plan: Any = None
    history: Sequence[Record] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The network's, in tables."""
        return ORIGINAL if self.method == ORIGINAL else label(self.method, self.limits)

    @property
    def folder(self) -> str:
        """The network's, in the run folder."""
        return f"networks/{slug(trial(self.name, self.seed))}"

    def run(self, study: Study) -> dict[str, Any]:
        """Make the network; its row of results."""
        if self.method == ORIGINAL:
            return study.original()
        if self.plan is None:
            return study.cut(self.method, self.limits, self.seed)
        model = self.plan.apply(study.network.model)
        return study.finish(
            self.name, self.method, self.limits, self.seed, model, self.plan, self.history, self.seconds
        )


def run_jobs(study: Study, jobs: Sequence[NetworkJob]) -> list[dict[str, Any]]:
    """Make networks where the study's engine says, those that are not complete yet; their rows of results."""
    left = [job for job in jobs if study.done(job.name, job.seed) is None]
    if isinstance(study.engine, RayEngine):
        _send(study, study.engine, left)
    else:
        _tune_together(study, [job for job in left if job.plan is not None])
        for job in left:
            job.run(study)
    rows = [study.done(job.name, job.seed) for job in jobs]
    return [row for row in rows if row is not None]


def _tune_together(study: Study, jobs: Sequence[NetworkJob]) -> None:
    """Tune networks as one fleet, where that is faster; each one's own tuning then finds itself done."""
    if study.recipe is None or study.dataset is None or len(jobs) < 2 or not _fleets_pay(study.device):
        return
    logger.info("%d networks: tuning for %d epochs, as one", len(jobs), study.recipe.epochs)
    try:
        fit_fleet(
            study.network.model,
            [job.plan for job in jobs],
            study.dataset,
            study.recipe,
            seeds=[study.recipe.seed + job.seed for job in jobs],
            run_dirs=[study.run.file(job.folder, "tuning") for job in jobs],
            device=study.device,
            teacher=study.teacher(),
            resume=True,
            progress=study.progress,
        )
    except TuneError as error:
        logger.info("not as one but one by one: %s", error)


def _fleets_pay(device: torch.device) -> bool:
    return device.type == "cuda"


def make_network(study: Study, method: str, limits: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Judge the network as it is, make one smaller network of it, and give the row of results of that."""
    job = NetworkJob(method, limits, seed)
    known = study.done(job.name, seed) is not None or _outcome(study.run, job) is not None
    led = method == "lcp" or "latency" in limits
    if isinstance(study.engine, RayEngine) and led and not known:
        # One search is the work of all machines, so it is led from here; only what follows is one machine's. And a
        # latency is that of this machine, at rest.
        result, seconds = study.choose(method, limits, seed)
        job = replace(job, plan=result.plan, history=result.history, seconds=seconds)
    return run_jobs(study, [NetworkJob(ORIGINAL), job])[-1]


def _send(study: Study, engine: RayEngine, jobs: Sequence[NetworkJob]) -> None:
    outcomes = {number: found for number, job in enumerate(jobs) if (found := _outcome(study.run, job))}
    wanted = [number for number in range(len(jobs)) if number not in outcomes]
    if not wanted:
        results: Any = ()
    else:
        packed, desk = engine.share(_pack(study)), engine.desk(study.run.path)
        items = [(packed, desk.at(jobs[number].folder), jobs[number]) for number in wanted]
        names = [trial(jobs[number].name, jobs[number].seed) for number in wanted]
        results = engine.map(_work, items, names=names, title="networks", progress=study.progress)
    recorded = _record(study, jobs, outcomes, 0)
    for index, outcome in results:
        outcomes[wanted[index]] = outcome
        recorded = _record(study, jobs, outcomes, recorded)


def _record(study: Study, jobs: Sequence[NetworkJob], outcomes: Mapping[int, Any], first: int) -> int:
    """Add the records of networks that are complete, up to the first that is not: whoever was faster, in one order."""
    while first in outcomes:
        job, outcome = jobs[first], outcomes[first]
        for kind in _KINDS[:-1]:
            study.add_once(kind, job.name, outcome[kind])
        study.run.add("results", *outcome["results"])
        first += 1
    return first


def _outcome(run: RunFolder, job: NetworkJob) -> dict[str, Any] | None:
    """The records of a network that was complete when the process that asked for it died."""
    file = run.file(job.folder, OUTCOME)
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _pack(study: Study) -> Study:
    """The study, ready to travel: on the CPU, without a folder."""
    return _moved(replace(study, run=None, engine=LocalEngine()), study.graph, "cpu")  # type: ignore[arg-type]


def _moved(study: Study, graph: Any, device: Any) -> Study:
    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    network = study.network
    model = network.model if network.example.device == torch.device(device) else copy.deepcopy(network.model).to(device)
    moved = replace(study, network=replace(network, model=model, example=network.example.to(device), run=None))
    moved.graph = replace(graph, model=model, example_inputs=pytree.tree_map(move, graph.example_inputs))
    return moved


def _work(item: tuple[Any, Any, NetworkJob]) -> dict[str, Any]:
    """In a task: make one network, in a folder that is mirrored into the run folder."""
    packed, store, job = item
    study: Study = packed.get()
    study = _moved(study, study.graph, own_device())
    with tempfile.TemporaryDirectory(prefix="lcprune-") as temporary:
        study.run = RunFolder(Path(temporary), "task", {})
        mirror = Mirror(study.run.file(job.folder), store)
        mirror.fetch()
        with mirror:
            outcome = _outcome(study.run, job)
            if outcome is None:
                job.run(study)
                outcome = {kind: study.run.records(kind) for kind in _KINDS}
                write_json(study.run.file(job.folder, OUTCOME), outcome)
    return outcome
