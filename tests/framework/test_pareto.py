"""Frontiers: one search, many networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import lcprune
from searching import searching

LIMITS = [0.7, 0.5, 0.3]
SHORT = {"pool": 6, "iterations": 10, "sample": 3, "images": 128, "after": "cut"}


def frontier(network, digits, search=SHORT, beside=("naive", "uniform"), **settings):
    """A frontier of LcP, and of the methods `beside` it."""
    common = {"macs": LIMITS, **searching(digits.train, **search), "progress": False}
    methods = [common.pop("method"), *beside]
    return lcprune.pareto(network.graph, **{**common, "methods": methods, **settings})


def test_one_search_is_shared_by_all_limits(trained, digits) -> None:
    search = {"pool": 16, "iterations": 32, "sample": 4, "images": 128, "after": "cut"}
    found = frontier(trained, digits, search=search, beside=("naive",))
    # A third of the candidates each, the loosest limit first; each begins with naive pruning.
    assert list(found.histories) == LIMITS and found.beta is None
    assert [len(history) for history in found.histories.values()] == [16, 16, 16]
    assert all(not np.any(history[0].beta) for history in found.histories.values())
    for lcp, naive in zip(found.curve("lcp"), found.curve("naive"), strict=True):
        assert lcp.difference <= naive.difference
        assert 0.5 * lcp.limit < lcp.macs / trained.graph.macs <= lcp.limit
    # What was best at a limit is tried at the next one.
    for loose, tight in ((0.7, 0.5), (0.5, 0.3)):
        best = min(found.histories[loose][1:], key=lambda record: record.difference)
        assert found.histories[tight][1].beta == best.beta


def test_one_search_at_the_tightest_limit_serves_all(trained, digits) -> None:
    found = frontier(trained, digits, learn="tightest")
    assert list(found.histories) == [0.3] and len(found.histories[0.3]) == 16
    assert found.beta.shape == (len(trained.graph.groups),)
    for method in ("lcp", "naive", "uniform"):
        points = found.curve(method)
        assert [point.limit for point in points] == LIMITS
        assert all(0.5 * p.limit < p.macs / trained.graph.macs <= p.limit for p in points)
        # A tighter limit never keeps more.
        assert points[0].macs >= points[1].macs >= points[2].macs
    # At the limit where it was learned, the compensation cannot be worse than none.
    assert found.curve("lcp")[-1].difference <= found.curve("naive")[-1].difference


def test_losses_and_costs_are_those_of_the_networks(plain, digits) -> None:
    found = frontier(plain, digits, search={"pool": 3, "iterations": 3, "images": 5000, "after": "cut"}, macs=[0.4])
    for point in found.points:
        assert sum(parameter.numel() for parameter in point.model.parameters()) == point.params
        images = torch.cat([images for images, _ in digits.train])
        labels = torch.cat([labels for _, labels in digits.train])
        with torch.no_grad():
            assert point.loss == pytest.approx(float(cross_entropy(point.model.eval()(images), labels)), rel=1e-4)
        assert point.difference == pytest.approx(abs(point.loss - found.full_loss))


def test_one_search_per_limit(plain, digits) -> None:
    found = frontier(plain, digits, learn="each", beside=("naive",))
    assert list(found.histories) == LIMITS and found.beta is None
    for lcp, naive in zip(found.curve("lcp"), found.curve("naive"), strict=True):
        assert lcp.difference <= naive.difference
    # The tightest one is the same search either way.
    reused = frontier(plain, digits, learn="tightest", beside=())
    assert reused.curve("lcp")[-1].plan.kept == found.curve("lcp")[-1].plan.kept


def test_limits_on_parameters(plain, digits) -> None:
    found = frontier(plain, digits, macs=None, params=[0.5, 0.2], methods=("naive",))
    assert all(point.params <= point.limit * plain.graph.params for point in found.points)


@pytest.mark.parametrize(
    ("learn", "file", "after", "count"),
    [("tightest", "search.jsonl", [], 17), ("sweep", "search-0.5.jsonl", ["search-0.3.jsonl"], 9)],
)
def test_records_are_written_and_gone_on_from(learn, file, after, count, plain, digits, tmp_path) -> None:
    search = SHORT if learn == "tightest" else {"pool": 8, "iterations": 16, "sample": 3, "images": 128, "after": "cut"}
    settings = {"learn": learn, "search": search, "run": tmp_path, "beside": ()}
    whole = frontier(plain, digits, **settings)
    path = tmp_path / file
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == count
    path.write_bytes(b"".join(lines[: count // 2]) + lines[count // 2][:30])
    for later in after:  # as if it had been killed in the middle
        (tmp_path / later).unlink()
    again = frontier(plain, digits, **{**settings, "run": lcprune.Job(tmp_path, resume=True)})
    assert [p.plan.kept for p in again.points] == [p.plan.kept for p in whole.points]
    assert len(path.read_bytes().splitlines()) == count


def test_a_resumed_frontier_ranks_by_the_scores_it_began_with(plain, digits, tmp_path) -> None:
    generator = np.random.default_rng(0)

    def restless(graph):  # as if a GPU added in another order each time
        return [generator.random(group.size) for group in graph.groups]

    settings = {"metric": restless, "beside": ("naive",), "macs": [0.5, 0.3]}
    whole = frontier(plain, digits, run=tmp_path, **settings)
    again = frontier(plain, digits, run=lcprune.Job(tmp_path, resume=True), **settings)
    assert [p.plan.kept for p in again.points] == [p.plan.kept for p in whole.points]


def test_a_single_limit_has_the_whole_search_as_it_was_asked_for(plain, digits) -> None:
    search = {"pool": 10, "iterations": 2, "sample": 3, "images": 64, "after": "cut"}
    found = frontier(plain, digits, macs=[0.5], search=search, beside=())
    alone = lcprune.prune(plain.graph, macs=0.5, **searching(digits.train, **search), progress=False)
    assert [record.beta for record in found.histories[0.5]] == [record.beta for record in alone.history]


def test_parts_of_a_shared_search_draw_candidates_of_their_own(plain, digits) -> None:
    search = {"pool": 4, "iterations": 20, "sample": 2, "images": 64, "after": "cut", "algorithm": "random"}
    found = frontier(plain, digits, macs=[0.7, 0.5, 0.3], search=search, beside=())
    drawn = [tuple(record.beta) for history in found.histories.values() for record in history[1:]]
    assert len(drawn) == 3 * 7 and len(set(drawn)) == len(drawn) - 2  # two limits begin with the best of the one before
    again = frontier(plain, digits, macs=[0.7, 0.5, 0.3], search=search, beside=())
    assert [tuple(record.beta) for history in again.histories.values() for record in history[1:]] == drawn


@pytest.mark.parametrize("learn", ["sweep", "each"])
def test_limits_that_read_alike_have_records_of_their_own(learn, plain, digits, tmp_path) -> None:
    settings = {"macs": [0.5, 0.5], "params": [0.6, 0.3], "learn": learn, "run": tmp_path, "beside": ()}
    whole = frontier(plain, digits, **settings)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["search-0.5-2.jsonl", "search-0.5.jsonl"]
    assert len(list(tmp_path.glob("networks/*/plan.json"))) == len(whole.points)
    again = frontier(plain, digits, **{**settings, "run": lcprune.Job(tmp_path, resume=True)})
    assert [p.plan.kept for p in again.points] == [p.plan.kept for p in whole.points]


@pytest.mark.cpu_bf16
def test_losses_are_of_float32_where_candidates_are_ranked_in_less(plain, digits) -> None:
    search = {"pool": 4, "iterations": 4, "images": 128, "after": "cut", "precision": "bf16"}
    half = frontier(plain, digits, search=search, beside=("naive",))
    exact = frontier(plain, digits, methods=("naive",))
    assert half.full_loss == exact.full_loss
    assert [point.loss for point in half.curve("naive")] == [point.loss for point in exact.curve("naive")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"macs": None}, "needs limits"),
        ({"macs": []}, "needs limits"),
        ({"params": [0.5]}, "as many of each"),
        ({"learn": "never"}, "'never'"),
        ({"methods": ("lcp", "magic")}, "magic"),
        ({"methods": ("lcp", "amc")}, "amc"),
        ({"methods": ("lcp", lcprune.LcP())}, "twice"),
        ({"methods": "lcp"}, "is one method"),
    ],
)
def test_mistakes_are_named(settings, message, plain, digits) -> None:
    with pytest.raises(lcprune.ConfigError, match=message):
        frontier(plain, digits, **settings)


def test_of_two_networks_with_one_limit_in_common_each_has_its_own_search(plain, digits) -> None:
    both = {"macs": [0.5, 0.5], "params": [0.9, 0.2]}
    found = frontier(plain, digits, beside=("naive",), **both)
    wide, narrow = found.curve("lcp")
    assert all(record.params > 0.2 * plain.graph.params for record in wide.history)
    assert all(record.params <= 0.2 * plain.graph.params for record in narrow.history)
    assert wide.history and narrow.history and not any(point.history for point in found.curve("naive"))


def test_one_limit_is_no_list(plain, digits) -> None:
    for name, limit in (("macs", 0.5), ("latency", "60%"), ("latency", lcprune.Latency("60%"))):
        shown = "'60%'" if name == "latency" else "0.5"
        with pytest.raises(lcprune.ConfigError, match=rf"{name}=\[{shown}\]"):
            lcprune.pareto(plain.model, digits.example, data=digits.train, progress=False, **{name: limit})


def test_a_network_that_fails_its_proof_leaves_the_frontier(plain, digits, monkeypatch) -> None:
    wrong = lcprune.Verification(ok=False, max_error=0.5, scale=1.0, dtype="float64")
    monkeypatch.setattr("lcprune.outcome.verify", lambda *args: wrong)
    with pytest.raises(lcprune.PlanError, match=r"off by 0\.5") as caught:
        frontier(plain, digits)
    assert len(caught.value.result.curve("lcp")) == len(LIMITS)
