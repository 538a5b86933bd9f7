"""A machine, or the process that leads, dies in the middle: the same result, nothing lost."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import SHORT, pruned, rows, same_weights, told, write_network

import lcprune
from lcprune.cli import main
from lcprune.data import load
from lcprune.engine import RayEngine
from lcprune.runs import RunFolder, network_folder
from lcprune.study import ORIGINAL, Network, NetworkJob, Study, run_jobs
from lcprune.tune import fit, recipe
from searching import searching_many

pytestmark = pytest.mark.slow
SIGNALLED = Path(__file__).parents[1] / "signalled.py"
# A dead machine refuses connections: Ray gives up on it after 0.7 s instead of 15 s. The timeout stays at Ray's 10 s,
# so that a machine which is only slow to answer lives.
NOTICE_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A machine with one core, to which others can be added."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install lcprune[ray]")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": 1, "object_store_memory": 150 * 2**20, "_system_config": NOTICE_SOON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@contextlib.contextmanager
def killed_when(cluster, node, condition: Callable[[], bool]) -> Iterator[threading.Event]:
    """Kill a machine, without a word to it, as soon as a condition holds."""
    happened, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if condition():
                cluster.remove_node(node, allow_graceful=False)
                happened.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield happened
    finally:
        over.set()
        watcher.join()


def lines(file) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_machine_dies_in_the_middle_of_a_search(plain, digits, cluster, tmp_path, caplog) -> None:
    def slow(output, target):
        time.sleep(0.05)
        return torch.nn.functional.cross_entropy(output, target)

    search = {**SHORT, "iterations": 60, "together": 2}  # long enough for the death to be noticed in its middle
    here = pruned(plain, digits, search=search)
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    file = tmp_path / "search.jsonl"
    with (
        caplog.at_level(logging.INFO, "lcprune"),
        RayEngine(workers=2) as engine,
        killed_when(cluster, node, lambda: lines(file) > 8 and "worker 1 is ready" in caplog.text) as happened,
    ):
        there = pruned(plain, digits, engine, search=search, loss_fn=slow, folder=tmp_path)
    assert happened.is_set() and "died: its candidate is judged again" in caplog.text
    assert told(there.history) == told(here.history)
    assert there.plan.kept == here.plan.kept
    assert lines(file) == 1 + search["pool"] + search["iterations"]


@dataclass(eq=False)
class Watched(Study):
    """A study whose tunings say where they are and from which step they go on.

    On the machine that is going to die they leave a checkpoint after a moment, and wait.
    """

    log: str = ""
    doomed: str = ""

    def tune(self, job, model):
        from safetensors import safe_open

        ray = sys.modules.get("ray")
        where = ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else "here"
        folder = self.run.file(job.folder, "tuning")
        file, steps = folder / "checkpoint.safetensors", 0
        if file.exists():
            with safe_open(file, framework="pt") as stored:
                state = json.loads(stored.metadata()["state"])
                steps = state["epoch"] + state["step"]
        with open(self.log, "a") as log:
            log.write(f"{job.name}|{where}|{steps}\n")
        options = {"run_dir": folder, "resume": True, "progress": False, "device": self.device}
        if where == self.doomed:
            fit(model, self.dataset, self.recipe, max_seconds=0.1, **options)
            time.sleep(100)
        result = fit(model, self.dataset, self.recipe, **options)
        model.eval()
        return [
            {"network": job.name, "epoch": e["epoch"], "loss": e["train_loss"], "accuracy": 0} for e in result.history
        ]


def test_a_machine_dies_in_the_middle_of_a_frontier(plain, digits, cluster, tmp_path) -> None:
    dataset = load("digits")
    tuning = recipe("finetune", epochs=2, batch_size=64)
    network = Network("plain", plain.model, digits.example)

    def frontier(folder, engine) -> None:
        with RunFolder.create(folder, "pareto", {}) as run, engine:
            study = Watched(run, network, plain.graph, dataset, tuning, progress=False, engine=engine, repair="none")
            study.log = str(tmp_path / f"{folder.name}.log")
            study.doomed = node.node_id
            points = lcprune.pareto(
                plain.graph,
                macs=[0.4, 0.6],
                **searching_many(digits.train, **{**SHORT, "together": 2}),
                progress=False,
                run=lcprune.Job(run.file("search"), engine=engine),
            ).points
            run_jobs(
                study, [NetworkJob(ORIGINAL), *(NetworkJob(p.method, {"macs": p.limit}, 0, p.plan) for p in points)]
            )

    def tuned_there() -> bool:
        """A tuning on the second machine is some steps on, and its checkpoint has come over here."""
        entries = [line.split("|") for line in log.read_text().splitlines()] if log.exists() else []
        names = [name for name, where, _ in entries if where == node.node_id]
        files = [tmp_path / "there" / network_folder(n) / "tuning" for n in names]
        return any((file / "checkpoint.safetensors").exists() for file in files)

    log = tmp_path / "there.log"
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    frontier(tmp_path / "here", lcprune.engine.LocalEngine())
    with killed_when(cluster, node, tuned_there) as happened:
        frontier(tmp_path / "there", RayEngine(workers=2))
    assert happened.is_set()
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert len(rows(tmp_path / "there")) == 7
    for folder in sorted((tmp_path / "here" / "networks").iterdir()):
        assert same_weights(folder, tmp_path / "there" / "networks" / folder.name)
    begun = [line.split("|") for line in log.read_text().splitlines()]
    again = [where for _, where, steps in begun if int(steps)]
    assert again and node.node_id not in again, f"no tuning went on from a checkpoint: {begun}"


def test_the_process_that_leads_is_killed(cluster, tmp_path) -> None:
    network = write_network(tmp_path)
    command = ["prune", network, "--data", "digits", "--macs", "50%", "--device", "cpu", "--quiet"]
    command += ["--no-report", "--repair", "none", "--set", "search.pool=6"]
    command += ["--set", "search.iterations=14", "--set", "search.images=64"]
    assert main([*command, "--out", str(tmp_path / "here")]) == 0
    there = tmp_path / "there"
    command += ["--engine", "ray", "--address", cluster.address, "--workers", "1", "--out", str(there)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run(
        [sys.executable, str(SIGNALLED), "SIGKILL", "search", "12", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    file = there / "networks" / "lcp-50-pc" / "search.jsonl"
    assert lines(file) == 1 + 12 and not RunFolder.open(there).records("results")
    assert main([*command, "--resume"]) == 0
    assert lines(file) == 1 + 20
    assert rows(tmp_path / "here") == rows(there)
    assert same_weights(tmp_path / "here", there)
