"""`lcprune.prune`: one call from a trained network to a smaller one that is what it says."""

from __future__ import annotations

import copy
import inspect
import logging
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import lcprune
from lcprune.batches import draw
from lcprune.select import Limits
from lcprune.task import Choice, Task
from searching import searching

SHORT = {"pool": 6, "iterations": 10, "sample": 3, "images": 128, "after": "cut"}


def counted_macs(model, example) -> float:
    """Multiply-adds of one image, by the counter of torch."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(example)
    return counter.get_total_flops() / 2 / len(example)


def loss(model, batches) -> float:
    with torch.no_grad():
        return sum(float(cross_entropy(model(x), y)) * len(y) for x, y in batches) / sum(len(y) for _, y in batches)


@pytest.mark.parametrize("method", ["uniform", "naive", "lcp"])
@pytest.mark.parametrize("limits", [{"macs": 0.5}, {"params": 0.4}, {"macs": 0.6, "params": 0.3}])
def test_the_result_meets_the_limits_and_verifies(method, limits, trained, digits) -> None:
    before = copy.deepcopy(trained.model.state_dict())
    how = {} if method == "lcp" else {"method": method}
    result = lcprune.prune(
        trained.graph, **{**searching(digits.train, **SHORT), **how}, progress=False, **limits
    )  # verifies what it returns
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
    for name, limit in limits.items():
        full = getattr(trained.graph, name)
        assert getattr(result.plan, name) <= limit * full
    shares = [getattr(result.plan, name) / (limit * getattr(trained.graph, name)) for name, limit in limits.items()]
    assert max(shares) > 0.6  # nothing is removed beyond what a limit asks for, but for the size of a unit
    assert sum(parameter.numel() for parameter in result.model.parameters()) == result.plan.params
    assert counted_macs(result.model, digits.example) == result.plan.macs
    assert result.model(digits.images[:3]).shape == (3, 10)
    assert result.plan.meta["method"] == method and result.plan.meta["seed"] == 0
    assert len(result.history) == (16 if method == "lcp" else 0)


def test_lcp_is_never_worse_than_naive_and_its_loss_is_what_it_says(trained, digits) -> None:
    images = digits.train[:6]
    settings = {"macs": 0.4, "progress": False}
    naive = lcprune.prune(trained.graph, method="naive", **settings)
    lcp = lcprune.prune(trained.graph, **searching(images, pool=8, iterations=24, after="cut"), **settings)
    full = loss(trained.model.eval(), images)
    difference = abs(loss(lcp.model.eval(), images) - full)
    assert difference <= abs(loss(naive.model.eval(), images) - full) + 1e-6
    assert lcp.plan.meta["difference"] == pytest.approx(difference, rel=1e-3, abs=1e-5)
    assert lcp.plan.meta["naive_difference"] == pytest.approx(lcp.history[0].difference)
    # The plan is the best candidate's.
    best = min(lcp.history, key=lambda record: record.difference)
    assert [len(units) for units in lcp.plan.kept.values()] == best.counts
    assert lcp.plan.macs == best.macs and lcp.plan.meta["beta"] == best.beta


def test_the_seed_decides(plain, digits) -> None:
    def run(seed: int):
        return lcprune.prune(plain.graph, macs=0.5, **searching(digits.train, **SHORT), seed=seed, progress=False)

    one, same, other = run(0), run(0), run(1)
    assert [r.beta for r in one.history] == [r.beta for r in same.history] != [r.beta for r in other.history]
    assert [r.loss for r in one.history] == [r.loss for r in same.history]
    assert one.plan.kept == same.plan.kept
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, same.model.state_dict()[name])


@pytest.mark.parametrize("settings", [{"form": "affine"}, {"algorithm": "random"}])
def test_other_searches(settings, plain, digits) -> None:
    search = {"pool": 6, "iterations": 20, "images": 128, "after": "cut", **settings}
    result = lcprune.prune(plain.graph, macs=0.4, **searching(digits.train, **search), progress=False)
    assert result.plan.meta["difference"] <= result.plan.meta["naive_difference"]
    assert np.array(result.plan.meta["beta"]).shape == ((2, 6) if "form" in settings else (6,))


@pytest.mark.parametrize("form", ["shift", "affine"])
def test_a_search_with_a_guide_goes_on_where_it_stopped(form, plain, digits, tmp_path) -> None:
    search = {"pool": 6, "iterations": 22, "images": 256, "algorithm": "guided", "form": form}
    settings = {"macs": 0.4, **searching(digits.train, **search), "progress": False}
    whole = lcprune.prune(plain.graph, run=tmp_path / "whole", **settings)
    assert len(whole.history) == 28
    assert whole.plan.meta["difference"] < min(record.difference for record in whole.history[:4])
    assert all(record.macs <= 0.4 * plain.graph.macs for record in whole.history)
    (tmp_path / "stopped").mkdir()
    lines = (tmp_path / "whole" / "search.jsonl").read_bytes().split(b"\n")
    (tmp_path / "stopped" / "search.jsonl").write_bytes(b"\n".join(lines[:10]) + b"\n")  # among the mutations
    resumed = lcprune.prune(plain.graph, run=lcprune.Job(tmp_path / "stopped", resume=True), **settings)
    assert [record.beta for record in resumed.history] == [record.beta for record in whole.history]
    assert resumed.plan.kept == whole.plan.kept


@pytest.mark.parametrize("metric", ["taylor", "bn_scale", lambda graph: [np.arange(g.size) for g in graph.groups]])
def test_metrics_by_name_and_by_function(metric, plain, digits) -> None:
    result = lcprune.prune(
        plain.graph,
        macs=0.5,
        method="naive",
        metric=metric,
        data=digits.train,
        repair="none",
        progress=False,
    )
    # In every group, what is kept scores at least as high as what is not.
    scores = lcprune.metrics.score(plain.graph, metric, data=digits.train)
    for units, score in zip(result.plan.kept.values(), scores, strict=True):
        gone = np.setdiff1d(np.arange(len(score)), units)
        assert not len(gone) or score[gone].max() <= score[list(units)].min()
    assert result.plan.meta["metric"] == (metric if isinstance(metric, str) else "<lambda>")


def test_a_given_schedule(plain, digits) -> None:
    first = plain.graph.groups[0].name
    result = lcprune.prune(plain.graph, method=lcprune.Schedule({first: 0.25}), progress=False)
    assert [len(units) for units in result.plan.kept.values()] == [2, 8, 16, 16, 32, 32]
    with pytest.raises(lcprune.ConfigError, match="a schedule needs shares"):
        lcprune.prune(plain.graph, method="schedule", progress=False)


def test_floor_and_width_are_passed_on(plain, digits) -> None:
    result = lcprune.prune(plain.graph, macs=0.3, method="naive", min_keep=0.25, multiple_of=4, progress=False)
    for units, size in zip(result.plan.kept.values(), plain.graph.cost.sizes, strict=True):
        assert len(units) >= size / 4 and (len(units) % 4 == 0 or len(units) == size)


def test_surgery_that_is_not_exact_is_refused(plain, digits, monkeypatch) -> None:
    wrong = lcprune.Verification(ok=False, max_error=0.5, scale=1.0, dtype="float64")
    monkeypatch.setattr("lcprune.outcome.verify", lambda *args: wrong)
    with pytest.raises(lcprune.PlanError, match=r"off by 0\.5") as caught:
        lcprune.prune(plain.graph, macs=0.5, method="naive", progress=False)
    assert caught.value.result.plan.macs <= 0.5 * plain.graph.macs  # nothing is lost after a long search
    assert caught.value.result.model(digits.example).shape == (len(digits.example), 10)


def test_a_network_whose_outputs_are_all_zero_cannot_be_checked() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    nn.init.zeros_(model[3].weight), nn.init.zeros_(model[3].bias)  # as some untrained networks have their heads
    with pytest.raises(lcprune.PlanError, match="cannot be checked: all outputs are zero") as caught:
        lcprune.prune(model, torch.randn(1, 3, 8, 8), macs=0.5, method="naive", progress=False)
    assert caught.value.result.plan.macs > 0


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"macs": 0.001, "method": "naive"}, lcprune.BudgetError, "smallest"),
        ({"method": "naive"}, lcprune.BudgetError, "no limit"),
        (
            {"macs": [0.5, 0.3], "method": "naive"},
            lcprune.ConfigError,
            r"macs=\[0.5, 0.3\]: prune takes one limit.*steps",
        ),
        ({"latency": ["60%", "50%"], "method": "naive"}, lcprune.ConfigError, "latency=.*: prune takes one limit"),
        ({"macs": 0.5}, lcprune.DataError, "'lcp' needs data="),
        ({"macs": 0.5, "method": "uniformly"}, lcprune.ConfigError, "Did you mean 'uniform'"),
        ({"macs": 0.5, "method": "naive", "metric": "l3"}, lcprune.MetricError, "l3"),
        ({"macs": 0.5, "method": "naive", "metric": "taylor"}, lcprune.MetricError, "needs data"),
    ],
)
def test_mistakes_are_named(settings, error, message, plain, digits) -> None:
    with pytest.raises(error, match=message):
        lcprune.prune(plain.graph, progress=False, **settings)


def test_fewer_images_than_asked_are_fine_and_said(plain, digits, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="lcprune"):
        lcprune.prune(plain.graph, macs=0.5, **searching(digits.train[:1], pool=2, iterations=1))
    assert "64 images" in caplog.text and "3000 asked" in caplog.text


def test_one_shot_data_is_enough(plain, digits) -> None:
    lcprune.prune(plain.graph, macs=0.5, metric="taylor", **searching(iter(digits.train), **SHORT), progress=False)


def test_judging_by_prepared_candidates(plain, digits) -> None:
    def halve(model, batches):
        model[0][0].weight.data.mul_(0.5)

    search = {"pool": 3, "iterations": 3, "images": 128, "prepare": halve}
    result = lcprune.prune(plain.model, digits.example, macs=0.4, **searching(digits.train, **search), progress=False)
    # The network that comes back is cut, not prepared: its weights are the original's.
    again = result.plan.apply(plain.model)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in result.model.state_dict().items())
    assert result.plan.meta["difference"] <= result.plan.meta["naive_difference"]


@pytest.mark.cpu_bf16
def test_low_precision_ranks_and_float32_decides(plain, digits) -> None:
    search = {
        "pool": 6,
        "iterations": 20,
        "images": 128,
        "after": "cut",
        "evaluator": "zero",
        "precision": "bf16",
    }
    settings = {"macs": 0.4, "progress": False}
    result = lcprune.prune(plain.graph, **searching(digits.train, **search), **settings)
    exact = lcprune.prune(plain.graph, method="naive", **settings)
    drawn = [(x[None], y[None]) for x, y in draw(digits.train, 128, 0)]
    full = loss(plain.model, drawn)
    assert result.plan.meta["difference"] == pytest.approx(abs(loss(result.model.eval(), drawn) - full), rel=1e-3)
    assert result.plan.meta["naive_difference"] == pytest.approx(abs(loss(exact.model.eval(), drawn) - full), rel=1e-3)
    assert result.plan.meta["difference"] <= result.plan.meta["naive_difference"]


def test_methods_are_listed_and_extended(plain, digits) -> None:
    assert {"uniform", "naive", "lcp", "schedule"} <= set(lcprune.methods())

    @lcprune.methods.register("first units")
    def first(task):
        return Choice([np.arange(max(1, size // 2)) for size in task.graph.cost.sizes], meta={"mine": 1})

    try:
        result = lcprune.prune(plain.graph, macs=0.5, method="first units", progress=False)
        assert result.plan.kept[plain.graph.groups[0].name] == (0, 1, 2, 3) and result.plan.meta["mine"] == 1
        with pytest.raises(lcprune.ConfigError, match="exists already"):
            lcprune.methods.register("first units")(first)
    finally:
        lcprune.methods._known.pop("first units")


@pytest.mark.parametrize("after", ["repair", "cut"])
def test_a_loss_that_cannot_be_searched_with_is_refused_at_once(after, plain, digits) -> None:
    calls = []

    def prune(loss_fn):
        def counted(output, target):
            calls.append(1)
            return loss_fn(output, target)

        search = {"pool": 6, "iterations": 10, "sample": 3, "images": 64, "after": after}
        how = searching(digits.train, loss_fn=counted, **search)
        return lcprune.prune(plain.graph, macs=0.5, progress=False, **how)

    with pytest.raises(lcprune.SearchError, match="of the network itself is not finite"):
        prune(lambda output, target: cross_entropy(output, target) * float("nan"))
    assert len(calls) < 6  # no candidate was judged
    with pytest.raises(lcprune.ConfigError, match=r"shape \((64|32),\), not one number"):
        prune(lambda output, target: cross_entropy(output, target, reduction="none"))
    # A number that is no tensor is good enough.
    number = prune(lambda output, target: cross_entropy(output, target).item())
    assert number.plan.kept == prune(cross_entropy).plan.kept


def test_volumes_are_pruned_by_their_loss(digits) -> None:
    """3-D convolutions have no channels-last layout of four dimensions."""
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1)),
        *(nn.BatchNorm3d(8), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 10)),
    )
    data = [(images[:, :, None], labels) for images, labels in digits.train]
    for after in ("repair", "statistics", "cut"):
        search = {"pool": 3, "iterations": 3, "sample": 2, "images": 64, "after": after}
        result = lcprune.prune(model, digits.example[:, :, None], macs=0.5, **searching(data, **search), progress=False)
        assert result.plan.macs <= 0.5 * result.plan.original_macs


def test_a_traced_graph_stands_for_network_and_example(plain, digits) -> None:
    given = lcprune.prune(plain.graph, macs=0.5, method="naive", progress=False)
    traced = lcprune.prune(plain.model, digits.example, macs=0.5, method=lcprune.Naive(), progress=False)
    assert given.plan.kept == traced.plan.kept
    with pytest.raises(lcprune.ConfigError, match="give the graph alone"):
        lcprune.prune(plain.graph, digits.example, macs=0.5, method="naive")
    with pytest.raises(lcprune.ConfigError, match="example_inputs are needed"):
        lcprune.prune(plain.model, macs=0.5, method="naive")


def test_what_is_known_goes_along_to_other_limits_and_nothing_else(plain, digits) -> None:
    samples = draw(digits.train, 64, 0)
    task = Task(plain.graph, Limits(macs=0.5), samples=samples)
    known = task.scores, task.ranking, task.evaluator, task.quick
    shown = task.shown  # may take a pass of the whole network
    tighter = task.but(limits=Limits(macs=0.3), seed=4)
    assert (tighter.scores, tighter.ranking, tighter.evaluator, tighter.quick) == known
    assert tighter.shown is shown
    assert tighter.seed == 4 and tighter.limits != task.limits == Limits(macs=0.5)
    other = task.but(scores=[score[::-1] for score in task.scores])
    assert other.ranking is not task.ranking and other.evaluator is task.evaluator
    assert "scores" not in vars(replace(task, metric="l1"))
    with pytest.raises(FrozenInstanceError):
        task.seed = 1


def test_the_front_door_stays_small() -> None:
    assert len(inspect.signature(lcprune.prune).parameters) <= 14
