"""Run folders: nothing is overwritten without being asked, and a job goes on only as itself."""

from __future__ import annotations

import json
import logging

import pytest

from lcprune.errors import ConfigError
from lcprune.runs import Interrupted, RunFolder, default_folder


def test_a_new_folder_holds_configuration_and_environment(tmp_path):
    run = RunFolder.create(tmp_path / "a", "prune", {"model": "resnet20", "macs": 0.5, "search": {"pool": 8}})
    again = RunFolder.open(run.path)
    assert (again.command, again.settings) == (
        "prune",
        {"model": "resnet20", "macs": 0.5, "search": {"pool": 8}},
    )
    assert "torch" in json.loads(run.file("environment.json").read_text())


def test_an_existing_folder_is_kept_unless_asked(tmp_path):
    RunFolder.create(tmp_path / "a", "prune", {"seed": 1}).add("results", {"x": 1})
    with pytest.raises(ConfigError, match=r"--resume.*--force.*--out"):
        RunFolder.create(tmp_path / "a", "prune", {"seed": 2})
    assert RunFolder.open(tmp_path / "a").records("results") == [{"x": 1}]
    RunFolder.create(tmp_path / "a", "prune", {"seed": 2}, force=True)
    assert RunFolder.open(tmp_path / "a").records("results") == []


def test_force_never_removes_what_lcprune_did_not_write(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder.create(tmp_path, "prune", {}, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_run_goes_on_only_with_the_same_job(tmp_path):
    RunFolder.create(tmp_path / "a", "prune", {"macs": 0.5, "device": "cpu"})
    assert RunFolder.resume(tmp_path / "a", "prune", {"macs": 0.5, "device": "cuda"}).command == "prune"
    with pytest.raises(ConfigError, match=r"macs=0\.5, now it is 0\.3"):
        RunFolder.resume(tmp_path / "a", "prune", {"macs": 0.3, "device": "cpu"})
    with pytest.raises(ConfigError, match="made by `lcprune prune`"):
        RunFolder.resume(tmp_path / "a", "tune", {"macs": 0.5})


def test_records_are_added_and_damage_is_named(tmp_path):
    run = RunFolder.create(tmp_path / "a", "prune", {})
    run.add("results", {"x": 1})
    run.add("results", {"x": 2}, {"x": 3})
    assert [row["x"] for row in run.records("results")] == [1, 2, 3]
    run.file("records", "results.json").write_text('[{"x": 1}')
    with pytest.raises(ConfigError, match=r"results\.json is damaged"):
        run.records("results")


def test_the_log_tells_how_a_run_ended_and_an_interruption_where_to_go_on(tmp_path):
    run = RunFolder.create(tmp_path / "a", "prune", {})
    with run:
        logging.getLogger("lcprune").info("half way")
    with pytest.raises(Interrupted) as caught, run:
        raise KeyboardInterrupt
    assert caught.value.path == str(run.path)
    log = run.file("log.txt").read_text()
    assert "half way" in log and "done after" in log and "stopped by KeyboardInterrupt" in log


def test_only_the_first_of_several_processes_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with RunFolder.create(tmp_path / "a", "train", {}) as run:
        run.add("results", {"x": 1})
    assert not (tmp_path / "a").exists()


def test_default_folders_are_named_for_the_job():
    assert default_folder("prune", "torchvision:resnet50").name.startswith("prune-torchvision-resnet50-")
    assert default_folder("prune", "some/where/my_net.py:build").name.startswith("prune-my_net.py-build-")
