"""Studies without a command line: what is tuned together, and what is not made again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import few_digits
import lcprune
from lcprune import models
from lcprune.runs import RunFolder
from lcprune.study import ORIGINAL, Network, NetworkJob, Study, jobs, run_jobs
from lcprune.tune import fit, fit_fleet, recipe


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    model, example = models.build(few_digits.NET), models.example_input(few_digits.NET)
    fit(model, few_digits.build(), recipe("baseline", epochs=1), device="cpu", progress=False)
    return Network(few_digits.NET, model.eval(), example)


def make_study(network: Network, folder: Path) -> Study:
    run = RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, "study", {})
    graph = lcprune.trace(network.model, network.example)
    tuning = recipe("finetune", epochs=1)
    return Study(run, network, graph, few_digits.build(), tuning, progress=False, repair="none")


def make_jobs(study: Study) -> list[NetworkJob]:
    plans = {limit: lcprune.prune(study.graph, macs=limit, method="naive").plan for limit in ("60%", "40%")}
    cuts = [NetworkJob("naive", {"macs": limit}, plan=plan) for limit, plan in plans.items()]
    return [NetworkJob(ORIGINAL), *cuts]


def test_networks_are_tuned_as_one_where_that_is_faster(network, tmp_path, monkeypatch) -> None:
    study = make_study(network, tmp_path / "alone")
    wanted = make_jobs(study)
    alone, asked = run_jobs(study, wanted), []

    def spy(original, plans, *arguments, **options):
        asked.append(len(plans))
        return fit_fleet(original, plans, *arguments, **options)

    monkeypatch.setattr(jobs, "fit_fleet", spy)
    monkeypatch.setattr(jobs, "_fleets_pay", lambda device: True)
    study = make_study(network, tmp_path / "together")
    together = run_jobs(study, wanted)
    assert asked == [2]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.get("loss_before") == theirs.get("loss_before")
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=0.02), "the same tuning, to rounding"
    assert len(study.run.records("training")) == 2


def test_a_study_makes_only_what_is_missing(network, tmp_path, monkeypatch) -> None:
    first = make_study(network, tmp_path / "study")
    rows = run_jobs(first, make_jobs(first)[:2])
    tuned = []
    monkeypatch.setattr(Study, "tune", lambda self, job, model: tuned.append(job.name) or [])
    again = make_study(network, tmp_path / "study")
    assert run_jobs(again, make_jobs(again))[:2] == rows
    assert tuned == ["naive 40 %"]
    assert [row["network"] for row in again.run.records("results")] == [ORIGINAL, "naive 60 %", "naive 40 %"]
    smaller = again.model_of(rows[1])
    assert lcprune.trace(smaller, network.example).macs == rows[1]["macs"]
