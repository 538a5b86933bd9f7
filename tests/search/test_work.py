"""How much a search does, counted: a guard that holds on any machine."""

from __future__ import annotations

import pytest
import torch

from lcprune import choosing
from lcprune.plan import Plan
from lcprune.select import Limits
from lcprune.task import Task
from searching import searching

SEARCH = {"pool": 8, "iterations": 16, "sample": 4, "images": 64, "after": "cut"}


@pytest.fixture
def counted(plain, digits, monkeypatch):
    """Runs a search of 24 candidates and counts surgeries and forward passes, by the one linear layer in each."""
    assert sum(isinstance(module, torch.nn.Linear) for module in plain.model.modules()) == 1
    counts = {"surgeries": 0, "forwards": 0}
    apply, forward = Plan.apply, torch.nn.Linear.forward

    def counting_apply(self, model):
        counts["surgeries"] += 1
        return apply(self, model)

    def counting_forward(self, x):
        counts["forwards"] += 1
        return forward(self, x)

    def run(**settings):
        from lcprune.batches import draw

        made_of = searching(None, **{**SEARCH, **settings})
        samples = draw(digits.train, 64, seed=0)
        task = Task(plain.graph, Limits(macs=0.5), samples=samples, evaluation=made_of["data"])
        task.ranking  # noqa: B018  (scores are not part of the search)
        monkeypatch.setattr(Plan, "apply", counting_apply)
        monkeypatch.setattr(torch.nn.Linear, "forward", counting_forward)
        evaluator = task.evaluator  # made here, so that its own checks are counted apart
        made = dict(counts)
        found = choosing.learn(task, made_of["method"].search).found
        monkeypatch.undo()
        distinct = {tuple(record.counts) for record in found.history}
        return evaluator.work, len(distinct), made, {name: counts[name] - made[name] for name in counts}

    return run


def test_a_candidate_costs_one_surgery_and_one_pass_over_the_images(counted) -> None:
    work, distinct, _, spent = counted(evaluator="slice", batch_size=64)
    assert work.evaluations == distinct + 1  # the network itself
    assert work.evaluations + work.hits == 24 + 1
    assert spent == {"surgeries": work.evaluations, "forwards": work.evaluations}
    assert work.sliced == work.evaluations


def test_silenced_candidates_cost_no_surgery(counted) -> None:
    work, distinct, made, spent = counted(evaluator="zero", batch_size=64)
    assert work.evaluations == distinct + 1 and work.sliced == 0
    assert made["surgeries"] == 1  # to see that silence is removal
    assert spent == {"surgeries": 0, "forwards": work.evaluations}


@pytest.mark.cpu_bf16
def test_ranking_in_less_precision_costs_a_few_finalists_more(counted) -> None:
    work, distinct, _, spent = counted(evaluator="slice", precision="bf16", finalists=3, batch_size=64)
    assert work.evaluations == distinct + 1
    # The network itself, naive pruning and the finalists; naive pruning may be one of these.
    assert spent["surgeries"] - work.evaluations in (4, 5)
