"""A search whose candidates are judged by workers: the same as on one machine, and the same again."""

from __future__ import annotations

import logging
import os
import signal
import sys

import numpy as np
import pytest
import torch
from engine_helpers import SHORT, TOTAL, pruned, told

import lcprune
from lcprune.engine import LocalEngine, RayEngine, make_engine
from lcprune.search import read_records
from searching import searching_many


@pytest.mark.parametrize("after", ["cut", "repair"])
def test_one_worker_is_the_local_run_to_the_bit(plain, digits, ray, after) -> None:
    search = {**SHORT, "after": after}
    here = pruned(plain, digits, search=search)
    there = pruned(plain, digits, RayEngine(workers=1), search=search)
    assert told(there.history) == told(here.history)
    assert there.plan.kept == here.plan.kept and there.plan.meta == here.plan.meta
    for name, value in here.model.state_dict().items():
        assert torch.equal(value, there.model.state_dict()[name])


def test_two_workers_do_what_two_together_do_on_one_machine(plain, digits, two) -> None:
    here = pruned(plain, digits, search={**SHORT, "together": 2})
    there = pruned(plain, digits, two)
    again = pruned(plain, digits, two)
    assert told(there.history) == told(here.history) == told(again.history)
    # Two candidates asked together do not know of one another, so this is another search than one at a time.
    assert told(there.history) != told(pruned(plain, digits).history)


def test_a_search_with_workers_goes_on_to_the_same_result(plain, digits, two, tmp_path) -> None:
    whole = pruned(plain, digits, two, folder=tmp_path / "whole")
    lines = (tmp_path / "whole" / "search.jsonl").read_bytes().split(b"\n")
    for stop in (4, 12):  # in the middle of the first pool, and between two that were asked together
        folder = tmp_path / f"stopped-{stop}"
        folder.mkdir()
        (folder / "search.jsonl").write_bytes(b"\n".join(lines[:stop]) + b"\n")
        resumed = pruned(plain, digits, two, folder=folder, resume=True)
        assert told(resumed.history) == told(whole.history)
        # The search is the same however many do the work.
        (folder / "search.jsonl").write_bytes(b"\n".join(lines[:stop]) + b"\n")
        local = pruned(plain, digits, search={**SHORT, "together": 2}, folder=folder, resume=True)
        assert told(local.history) == told(whole.history)


def test_another_number_together_is_another_search(plain, digits, tmp_path) -> None:
    pruned(plain, digits, search={**SHORT, "together": 2}, folder=tmp_path)
    with pytest.raises(lcprune.SearchError, match=r"search\.together: 2 in the records, 3 now"):
        pruned(plain, digits, search={**SHORT, "together": 3}, folder=tmp_path, resume=True)


def test_asynchronous_judges_all_and_replays_what_happened(plain, digits, two, tmp_path) -> None:
    search = {**SHORT, "asynchronous": True}
    whole = pruned(plain, digits, two, search=search, folder=tmp_path / "whole")
    assert [record.iteration for record in whole.history] == list(range(TOTAL))
    assert whole.history[0].beta == [0.0] * len(plain.graph.groups)
    folder = tmp_path / "stopped"
    folder.mkdir()
    lines = (tmp_path / "whole" / "search.jsonl").read_bytes().split(b"\n")
    (folder / "search.jsonl").write_bytes(b"\n".join(lines[:14]) + b"\n")
    before = {record.iteration: record for record in read_records(folder / "search.jsonl")[1]}
    resumed = pruned(plain, digits, two, search=search, folder=folder, resume=True)
    assert [record.iteration for record in resumed.history] == list(range(TOTAL))
    assert all(resumed.history[iteration] == record for iteration, record in before.items())


def test_more_together_than_the_pool_holds(plain, digits) -> None:
    search = {**SHORT, "together": 50}
    for algorithm in ("evolution", "random"):
        for asynchronous in (False, True):
            chosen = {**search, "algorithm": algorithm, "asynchronous": asynchronous}
            found = pruned(plain, digits, search=chosen)
            assert len(found.history) == TOTAL
            assert found.plan.meta["difference"] <= found.plan.meta["naive_difference"]


def test_a_frontier_with_workers(plain, digits, two) -> None:
    options = {"macs": [0.3, 0.6], "progress": False}
    here = lcprune.pareto(plain.graph, **searching_many(digits.train, **{**SHORT, "together": 2}), **options)
    there = lcprune.pareto(plain.graph, **searching_many(digits.train, **SHORT), run=lcprune.Job(engine=two), **options)
    assert here.full_loss == there.full_loss
    for one, other in zip(here.points, there.points, strict=True):
        assert (one.method, one.limit, one.loss, one.plan.kept) == (
            other.method,
            other.limit,
            other.loss,
            other.plan.kept,
        )


def test_prepared_candidates_and_steps(plain, digits, two) -> None:
    """Each round's network goes to the workers anew; what prepares candidates goes along."""
    search = {
        "pool": 4,
        "iterations": 4,
        "sample": 2,
        "images": 64,
        "after": "statistics",
        "together": 2,
        "precision": "bf16",
    }
    options = {"by": lcprune.prune_in_steps, "tune": None, "steps": 2, "search": search, "macs": 0.5}
    here, there = pruned(plain, digits, **options), pruned(plain, digits, two, **options)
    assert [told(step.history) for step in there.steps] == [told(step.history) for step in here.steps]
    assert there.plan.meta == here.plan.meta


@pytest.mark.cpu_bf16
def test_finalists_are_judged_exactly_where_candidates_are_only_ranked(plain, digits, two) -> None:
    search = {**SHORT, "together": 2, "precision": "bf16"}
    here, there = pruned(plain, digits, search=search), pruned(plain, digits, two, search=search)
    assert told(there.history) == told(here.history)
    assert there.plan.kept == here.plan.kept and there.plan.meta == here.plan.meta
    exact = pruned(plain, digits, search={**SHORT, "together": 2})
    assert here.history[0].loss != exact.history[0].loss  # ranked in less
    assert there.plan.meta["naive_difference"] == exact.plan.meta["naive_difference"]  # judged in float32


def test_errors_of_the_user_s_own_loss_come_back_as_they_are(plain, digits, two) -> None:
    def broken(output, target):
        raise ZeroDivisionError("my own mistake")

    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        pruned(plain, digits, two, loss_fn=broken)
    assert len(pruned(plain, digits, two).history) == TOTAL  # the workers live on


def test_what_workers_say_is_heard_with_their_names(plain, digits, two, caplog) -> None:
    def loss_fn(output, target):
        logging.getLogger("lcprune").info("hello from %d", os.getpid())
        return torch.nn.functional.cross_entropy(output, target)

    said, speakers = [], set()
    for seed in range(10):  # one worker may be done before the other has started
        with caplog.at_level(logging.INFO, "lcprune"):
            pruned(plain, digits, two, loss_fn=loss_fn, seed=seed)
            two.listen(now=True)
        said = [record.getMessage() for record in caplog.records if "hello from" in record.getMessage()]
        speakers = {text.split(",")[0] for text in said}
        if len(speakers) == 2:
            break
    assert speakers == {"[worker 0", "[worker 1"}
    assert all(text.split("pid ")[1].split("]")[0] == text.split("from ")[1] for text in said)
    assert str(os.getpid()) not in {text.split("from ")[1] for text in said}


def test_a_worker_that_dies_costs_nothing_but_time(plain, digits, two, tmp_path, caplog) -> None:
    here = pruned(plain, digits, search={**SHORT, "together": 2})
    flag = tmp_path / "died"

    def loss_fn(output, target):
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(output, target)

    with caplog.at_level(logging.INFO, "lcprune"):
        there = pruned(plain, digits, two, loss_fn=loss_fn)
    assert flag.exists() and told(there.history) == told(here.history)
    assert "died: its candidate is judged again" in caplog.text


def test_engines_by_name() -> None:
    assert isinstance(make_engine("local"), LocalEngine) and isinstance(make_engine(), LocalEngine)
    with pytest.raises(lcprune.ConfigError, match="no engine 'spark'"):
        make_engine("spark")
    with pytest.raises(lcprune.ConfigError, match="workers=4 needs engine"):
        make_engine("local", workers=4)


def test_without_ray_one_line_says_how_to_get_it(plain, digits, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(lcprune.MissingDependencyError, match=r"pip install lcprune\[ray\]"):
        pruned(plain, digits, "ray")
    pruned(plain, digits)  # and nothing else needs it


def test_selections_survive_the_way(plain, digits) -> None:
    from lcprune.batches import collate
    from lcprune.engine.worker import unpack
    from lcprune.evaluate import SlicingEvaluator

    sizes = [group.size for group in plain.graph.groups]
    kept = [np.flatnonzero(np.random.default_rng(size).random(size) < 0.5) for size in sizes]
    batches = collate([(digits.images[0], digits.labels[0])], 1)
    key = SlicingEvaluator(plain.graph, batches, torch.nn.functional.cross_entropy)._key(kept)
    assert all(np.array_equal(a, b) for a, b in zip(unpack(key, sizes), kept, strict=True))


def test_a_candidate_that_ends_every_worker_is_refused(plain, digits, two, monkeypatch) -> None:
    def fatal(output, target):
        os.kill(os.getpid(), signal.SIGKILL)

    # Each worker once: the third would have to wait for one to come back.
    monkeypatch.setattr("lcprune.engine.crew._ATTEMPTS", 2)
    with pytest.raises(lcprune.EngineError, match="2 workers died of the same candidate"):
        pruned(plain, digits, two, loss_fn=fatal)


def test_nobody_at_the_address_is_said_at_once(ray, monkeypatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # an open connection would be used instead
    with pytest.raises(lcprune.EngineError, match=r"no Ray cluster could be reached .* at '127\.0\.0\.1:1'"):
        RayEngine("127.0.0.1:1").__enter__()
