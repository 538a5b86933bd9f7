"""Where settings come from, and which wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcprune.cli.command import parse_assignment
from lcprune.runs import RunFolder


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("search.pool=32", {"search": {"pool": 32}}),
        ("tune.lr=0.02", {"tune": {"lr": 0.02}}),
        ("tune.lr_decay=cosine", {"tune": {"lr_decay": "cosine"}}),
        ("tune.milestones=[3, 5]", {"tune": {"milestones": [3, 5]}}),
        ("macs=50%", {"macs": "50%"}),
        ("tune.nesterov=false", {"tune": {"nesterov": False}}),
    ],
)
def test_assignments_are_understood(text, values):
    assert parse_assignment(text) == values


def test_typed_options_win_over_set_over_file_over_defaults(lcprune):
    Path("run.toml").write_text('model = "resnet20"\nmethod = "uniform"\nmacs = "70%"\nseed = 1\nmultiple-of = 2\n')
    common = ["--config", "run.toml", "--no-report", "-q"]
    said = lcprune("prune", *common, "--set", "macs=60%", "--set", "seed=2", "--macs", "50%", "--out", "a")
    assert said.code == 0, said.err
    settings = RunFolder.open("a").settings
    assert (settings["macs"], settings["seed"], settings["multiple_of"]) == ("50%", 2, 2)
    assert (settings["method"], settings["min_keep"]) == ("uniform", 0.1)


def test_a_run_can_be_repeated_from_its_own_configuration(lcprune):
    lcprune("prune", "resnet20", "--method", "naive", "--macs", "50%", "--out", "a", "--no-report", "-q")
    said = lcprune("prune", "--config", "a/config.toml", "--out", "b", "--no-report", "-q")
    assert said.code == 0, said.err
    assert RunFolder.open("b").settings == RunFolder.open("a").settings
    assert RunFolder.open("b").records("results")[1]["macs"] == RunFolder.open("a").records("results")[1]["macs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "searc.pool=3"], "did you mean 'search'"),
        (["--set", "search.poool=3"], "did you mean 'search.pool'"),
        (["--set", "search.pool=none"], "pool="),
        (["--set", "tune.lrr=3", "--epochs", "1"], "lrr"),
        (["--set", "macs"], "key=value"),
        (["--config", "none.toml"], "no configuration file none.toml"),
        (["--config", "tune.toml"], "configures `lcprune tune`"),
        (["--recipe", "nouvelle"], "no recipe is called 'nouvelle'"),
    ],
)
def test_wrong_settings_are_wrong_usage(lcprune, arguments, words):
    Path("tune.toml").write_text('command = "tune"\n')
    said = lcprune("prune", "resnet20", "--method", "naive", "--macs", "50%", *arguments)
    assert said.code == 2
    assert words in said.err and len(said.err.splitlines()) <= 2
    assert not Path("runs").exists()


def test_a_command_with_a_folder_of_its_own_resumes_from_it(lcprune):
    said = lcprune("demo", "--resume")
    assert said.code == 2 and "no run folder runs/demo" in said.err.replace("\\", "/")
