"""The networks of a study made elsewhere: each is one task on a machine of the cluster.

A task works in a folder of its own that is mirrored into the run folder: one that is run again, because its machine
died, goes on from the search records and the checkpoint that it had written. The last file, `outcome.json`, says that
the network is complete, and holds its records; the study adds these in the order in which networks were asked for.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from lcprune.batches import to_device
from lcprune.data import Dataset
from lcprune.engine import LocalEngine, RayEngine
from lcprune.engine.desk import Mirror
from lcprune.engine.worker import on_device, own_device
from lcprune.errors import TuneError
from lcprune.files import write_json
from lcprune.runs import RunFolder
from lcprune.study.job import ORIGINAL, NetworkJob
from lcprune.study.study import Study
from lcprune.tune import fit_fleet

logger = logging.getLogger("lcprune")

OUTCOME = "outcome.json"
_KINDS = ("schedule", "search", "training", "results")  # the row of results says that all is there


def run_jobs(study: Study, jobs: Sequence[NetworkJob]) -> list[dict[str, Any]]:
    """Make networks where the study's engine says, those that are not complete yet; their rows of results."""
    left = [job for job in jobs if study.done(job) is None]
    if isinstance(study.engine, RayEngine):
        _send(study, study.engine, left)
    else:
        _tune_together(study, [job for job in left if job.plan is not None])
        for job in left:
            study.make(job)
    rows = [study.done(job) for job in jobs]
    return [row for row in rows if row is not None]


def _tune_together(study: Study, jobs: Sequence[NetworkJob]) -> None:
    """Tune networks as one fleet, where that is faster; each one's own tuning then finds itself done."""
    if study.recipe is None or len(jobs) < 2 or not _fleets_pay(study.device):
        return
    if not isinstance(study.dataset, Dataset) or not study.dataset.classifies:
        return
    logger.info("%d networks: tuning for %d epochs, as one", len(jobs), study.recipe.epochs)
    try:
        fit_fleet(
            study.network.model,
            [job.plan for job in jobs],
            study.dataset,
            study.recipe,
            models=[study.start(job, study.network.model) for job in jobs],
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
    known = study.done(job) is not None or _outcome(study.run, job) is not None
    led = method == "lcp" or "latency" in limits
    if isinstance(study.engine, RayEngine) and led and not known:
        # One search is the work of all machines, so it is led from here; only what follows is one machine's. And a
        # latency is that of this machine, at rest.
        job, _ = study.choose(job)
    return run_jobs(study, [NetworkJob(ORIGINAL), job])[-1]


def _send(study: Study, engine: RayEngine, jobs: Sequence[NetworkJob]) -> None:
    """Have networks made, and add their records in the order of the jobs, whoever was faster."""
    known = {number: found for number, job in enumerate(jobs) if (found := _outcome(study.run, job))}
    wanted = [number for number in range(len(jobs)) if number not in known]
    made: Iterable[tuple[int, Any]] = ()
    if wanted:
        plain = replace(study, run=None, engine=LocalEngine())  # type: ignore[arg-type]
        packed, folder = engine.share(_moved(plain, torch.device("cpu"))), engine.folder(study.run.path)
        items = [(packed, folder.at(jobs[number].folder), jobs[number]) for number in wanted]
        names = [jobs[number].title for number in wanted]
        made = engine.map(_work, items, names=names, title="networks", progress=study.progress)
    outcomes: dict[int, Any] = {}
    first = 0
    for number, outcome in chain(known.items(), ((wanted[index], outcome) for index, outcome in made)):
        outcomes[number] = outcome
        while first in outcomes:
            for kind in _KINDS[:-1]:
                study.add_once(kind, jobs[first].name, outcomes[first][kind])
            study.run.add("results", *outcomes[first]["results"])
            first += 1


def _outcome(run: RunFolder, job: NetworkJob) -> dict[str, Any] | None:
    """The records of a network that was complete when the process that asked for it died."""
    file = run.file(job.folder, OUTCOME)
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _moved(study: Study, device: torch.device) -> Study:
    graph, example = on_device(study.graph, device), to_device(study.network.example, device)
    return replace(study, network=replace(study.network, model=graph.model, example=example, run=None), graph=graph)


def _work(item: tuple[Any, Any, NetworkJob]) -> dict[str, Any]:
    """In a task: make one network, in a folder that is mirrored into the run folder."""
    packed, folder, job = item
    study = _moved(packed.get(), own_device())
    with tempfile.TemporaryDirectory(prefix="lcprune-") as temporary:
        study.run = RunFolder(Path(temporary), "task", {})
        with Mirror(study.run.file(job.folder), folder):
            outcome = _outcome(study.run, job)
            if outcome is None:
                study.make(job)
                outcome = {kind: study.run.records(kind) for kind in _KINDS}
                write_json(study.run.file(job.folder, OUTCOME), outcome)
    return outcome
