"""Races: who is surely worse stops early, and nobody else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.batches import collate, draw
from lcprune.evaluate import Evaluation, make_evaluator
from lcprune.evaluate.race import Rival, stage_size
from searching import searching

NOISE = np.random.default_rng(0).normal(0.5, 0.1, 64)
RIVAL = Rival(tuple(NOISE), float(NOISE.mean()))


def test_who_is_surely_worse_is_beaten_after_a_few_parts() -> None:
    worse = tuple(NOISE + np.random.default_rng(1).normal(0.3, 0.1, 64))
    assert [RIVAL.beats(worse[:parts]) for parts in (1, 15, 16, 63)] == [False, False, True, True]
    assert RIVAL.estimate(worse[:16]) == pytest.approx(RIVAL.loss + 0.3, abs=0.1)
    assert not RIVAL.beats(worse)  # it has been judged to the end
    assert RIVAL.beats((0.4, math.nan)) and RIVAL.beats((math.inf,))


def test_equals_are_beaten_in_one_of_a_thousand_cases() -> None:
    rng = np.random.default_rng(2)
    beaten = [RIVAL.beats(tuple(NOISE + rng.normal(0, 0.1, 64))[:parts]) for _ in range(4000) for parts in (16, 40)]
    assert 1 <= sum(beaten) <= 20
    better = [RIVAL.beats(tuple(NOISE + rng.normal(-0.2, 0.1, 64))[:parts]) for _ in range(1000) for parts in (16, 40)]
    assert not any(better)


@pytest.fixture(scope="module")
def images(digits):
    """Enough of them for eight stages."""
    samples = draw(digits.train, 1024, seed=0)
    assert stage_size(len(samples)) == 128
    return samples


def test_a_candidate_stops_early_and_its_estimate_is_for_races_alone(plain, images) -> None:
    judge = make_evaluator(plain.graph, images, Evaluation(after="cut"))
    few = [np.arange(1) for _ in plain.graph.groups]
    judge.full_loss()
    whole = [np.arange(group.size) for group in plain.graph.groups]
    rival = Rival(judge.parts(whole), judge.full_loss())
    assert len(rival.parts) == 64
    estimate = judge.loss(few, rival)
    assert len(judge.parts(few)) == 16 and judge.loss(few, rival) == estimate
    model = plain.graph.plan(few).apply(plain.model).eval()
    (batch,) = collate(images, len(images))
    with torch.no_grad():
        expected = float(cross_entropy(model(batch.inputs), batch.target))
    assert estimate == pytest.approx(expected, rel=0.2) and estimate != pytest.approx(expected, rel=1e-4)
    assert judge.loss(few) == pytest.approx(expected, rel=1e-4) and len(judge.parts(few)) == 64


def test_a_race_needs_fewer_images_for_a_result_that_is_no_worse(plain, digits, tmp_path) -> None:
    def search(race: bool, run):
        settings = {"pool": 16, "iterations": 34, "sample": 6, "images": 1024, "race": race}
        return lcprune.prune(plain.graph, macs=0.4, run=run, progress=False, **searching(digits.train, **settings))

    every, raced = search(False, tmp_path / "every"), search(True, tmp_path / "raced")
    assert "judged" not in every.plan.meta and raced.plan.meta["judged"] < 1
    assert raced.plan.meta["difference"] <= 1.1 * every.plan.meta["difference"] + 0.01
    best = min(raced.history, key=lambda record: record.difference)
    assert len(best.parts) == len(raced.history[0].parts) == 32  # half of the images judge
    # Going on from half of the records ends in the same place.
    path = tmp_path / "raced" / "search.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:30]))
    again = search(True, lcprune.Job(tmp_path / "raced", resume=True))
    assert [(one.beta, one.loss, one.parts) for one in again.history] == [
        (one.beta, one.loss, one.parts) for one in raced.history
    ]
