"""A search that was killed goes on to the very same result."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import killed_search
import pytest
import torch

import lcprune
from lcprune.search import read_records
from searching import searching

SHORT = {"pool": 6, "iterations": 10, "sample": 3, "images": 128, "after": "cut"}


@pytest.fixture(scope="module")
def searched(plain, digits, tmp_path_factory):
    """`searched(after, folder)`: what a short search found, with its records in the folder; made once."""

    @functools.cache
    def run(after: str):
        folder = tmp_path_factory.mktemp("searched")
        settings = {"macs": 0.4, **searching(digits.train, **{**SHORT, "after": after}), "progress": False}
        return lcprune.prune(plain.graph, run=folder, **settings), folder

    def copied(after: str, folder: Path):
        found, made = run(after)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return found

    return copied


def lines(folder: Path) -> int:
    path = folder / "search.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_sigkill_and_resume(plain, tmp_path) -> None:
    weights, killed = tmp_path / "weights.pt", tmp_path / "killed"
    torch.save(plain.model.state_dict(), weights)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Killed twice: in the first pool, and among the mutations.
    for count in (4, 15):
        command = [sys.executable, killed_search.__file__, str(killed), str(weights), str(count - lines(killed))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert lines(killed) == count
    with open(killed / "search.jsonl", "ab") as torn:  # as if the kill had come in the middle of a line
        torn.write(b'{"iteration": 99, "loss": 0.')

    whole, resumed = (killed_search.prune(folder, weights) for folder in (tmp_path / "whole", killed))
    assert [replace(r, seconds=0) for r in resumed.history] == [replace(r, seconds=0) for r in whole.history]
    assert resumed.plan.kept == whole.plan.kept and len(whole.history) == 24
    found = resumed.model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in whole.model.state_dict().items())
    assert len(read_records(killed / "search.jsonl")[1]) == 24


def test_resuming_computes_only_what_is_missing(plain, digits, tmp_path) -> None:
    calls = []

    def loss_fn(output, target):
        calls.append(1)
        return torch.nn.functional.cross_entropy(output, target)

    settings = {"macs": 0.4, **searching(digits.train, loss_fn=loss_fn, **SHORT), "progress": False}
    whole = lcprune.prune(plain.graph, run=tmp_path, **settings)
    computed = len(calls)
    calls.clear()
    again = lcprune.prune(plain.graph, run=lcprune.Job(tmp_path, resume=True), **settings)
    assert len(calls) == 2 < computed  # two batches: the whole network's loss alone
    assert again.plan.kept == whole.plan.kept and again.history == whole.history


def test_a_resumed_search_knows_what_was_judged_before(plain, digits, tmp_path) -> None:
    search = {"pool": 6, "iterations": 60, "sample": 3, "images": 64, "after": "cut"}
    settings = {"macs": 0.4, **searching(digits.train, **search), "progress": False}
    whole = lcprune.prune(plain.graph, run=tmp_path, **settings)
    path = tmp_path / "search.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:50]))
    again = lcprune.prune(plain.graph, run=lcprune.Job(tmp_path, resume=True), **settings)
    assert [replace(r, seconds=0) for r in again.history] == [replace(r, seconds=0) for r in whole.history]
    later = [record for record in whole.history[49:] if record.cached]
    before = {tuple(record.counts) for record in whole.history[:49]}
    assert any(tuple(record.counts) in before for record in later), "nothing came again: this test shows nothing"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"macs": 0.5}, "limits"),
        ({"seed": 1}, "seed: 0 in the records, 1 now"),
        ({"metric": "l1"}, "metric: 'l2' in the records, 'l1' now"),
        ({"min_keep": 0.2}, "min_keep"),
        ({"iterations": 11}, r"search\.iterations: 10 .*, 11 now"),
        ({"images": 96}, r"evaluation\.images: 128 .*, 96 now"),
    ],
)
def test_another_search_is_refused(change, named, plain, digits, searched, tmp_path) -> None:
    def run(folder, **changed):
        search = {name: changed.pop(name, value) for name, value in SHORT.items()}
        settings = {"macs": 0.4, **searching(digits.train, **search), "progress": False, **changed}
        return lcprune.prune(plain.graph, run=folder, **settings)

    searched("cut", tmp_path)
    with pytest.raises(lcprune.SearchError, match=named):
        run(lcprune.Job(tmp_path, resume=True), **change)
    with pytest.raises(lcprune.SearchError, match="resume=True"):
        run(tmp_path)


def test_another_network_and_other_images_are_refused(plain, digits, tmp_path) -> None:
    settings = {"macs": 0.4, "progress": False, "run": lcprune.Job(tmp_path, resume=True)}
    lcprune.prune(plain.graph, **searching(digits.train, **SHORT), **settings)
    with pytest.raises(lcprune.SearchError, match="images: "):
        lcprune.prune(plain.graph, **searching(digits.held_out, **SHORT), **settings)
    other = copy.deepcopy(plain.model)
    with torch.no_grad():
        other[0][0].weight += 1e-6
    with pytest.raises(lcprune.SearchError, match="weights: "):
        lcprune.prune(other, digits.example, **searching(digits.train, **SHORT), **settings)


@pytest.mark.parametrize("after", ["repair", "cut"])
@pytest.mark.parametrize("kept_lines", [0, 1, 2, 7])
def test_where_a_search_was_killed_does_not_show(kept_lines, after, plain, digits, searched, tmp_path) -> None:
    search = {**SHORT, "after": after}
    settings = {"macs": 0.4, **searching(digits.train, **search), "progress": False}
    whole = searched(after, tmp_path)
    path = tmp_path / "search.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept_lines]))
    again = lcprune.prune(plain.graph, run=lcprune.Job(tmp_path, resume=True), **settings)
    assert [replace(r, seconds=0) for r in again.history] == [replace(r, seconds=0) for r in whole.history]
    assert again.plan.kept == whole.plan.kept
