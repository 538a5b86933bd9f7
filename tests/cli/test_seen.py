"""What a person sees: help, tables, trees, lists; and the demo, made small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lcprune.cli import demo, main
from lcprune.cli.show import print_table
from lcprune.runs import RunFolder
from lcprune.version import VERSION

COMMANDS = ["demo", "inspect", "plan", "train", "prune", "pareto", "tune", "evaluate", "latency", "export", "report"]
COMMANDS += ["compare"]


def test_help_lists_every_command(lcprune):
    said = lcprune("--help")
    assert said.code == 0
    assert all(command in said.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_in_its_help(lcprune, command):
    said = lcprune(command, "--help")
    assert said.code == 0
    assert "Examples:" in said.out and f"lcprune {command}" in said.out.split("Examples:")[1]


def test_python_m_lcprune_is_the_same_program(lcprune):
    said = lcprune("--version")
    assert (said.code, said.out) == (0, f"lcprune {VERSION}\n"), said.err
    done = subprocess.run([sys.executable, "-m", "lcprune", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr == lcprune("nonsense").err


def test_the_shell_can_complete_commands(monkeypatch, capfd):
    asked = {"COMP_WORDS": "lcprune exp", "COMP_CWORD": "1", "_LCPRUNE_COMPLETE": "complete_bash"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        main([])
    assert not left.value.code and capfd.readouterr().out.split() == ["export"]


def test_inspect_shows_layers_groups_and_what_is_frozen(lcprune):
    said = lcprune("inspect", "resnet20")
    assert said.code == 0
    for words in ("40.55 M MACs", "layer1.0.conv1", "Groups that can be pruned", "What stays as it is", "linear"):
        assert words in said.out


def test_inspect_for_machines_agrees_with_itself(lcprune):
    seen = lcprune("inspect", "resnet20", "--json").json
    assert (seen["macs"], seen["params"]) == (40551040, 269722)
    assert sum(layer["macs"] for layer in seen["layers"].values()) == seen["macs"]
    assert sum(layer["params"] for layer in seen["layers"].values()) == seen["params"]
    assert seen["groups"] and all(group["size"] > 0 and group["members"] for group in seen["groups"])
    assert "linear" in seen["frozen"]


def test_inspect_leaves_ignored_layers_alone(lcprune):
    names = [group["name"] for group in lcprune("inspect", "resnet20", "--ignore", "layer1.*", "--json").json["groups"]]
    assert names and not any(name.startswith("layer1.") for name in names)


def test_methods_are_listed(lcprune):
    assert "Layer-compensated pruning" in lcprune("methods").out
    listed = lcprune("methods", "--json").json
    assert {"lcp", "naive", "uniform"} <= set(listed["methods"]) and "l2" in listed["metrics"]


def test_latency_is_a_table(lcprune):
    said = lcprune("latency", "digits_resnet", "--batch-sizes", "1", "--device", "cpu", "-q")
    assert said.code == 0 and "batch 1 (ms)" in said.out


@pytest.mark.slow
def test_the_demo_goes_the_whole_way_and_goes_on(lcprune, few, monkeypatch):
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 2})
    monkeypatch.setattr(demo, "TUNING", {**demo.TUNING, "epochs": 1})
    monkeypatch.setattr(demo, "SEARCH", {"pool": 4, "iterations": 4, "images": 128})
    monkeypatch.setattr(demo, "LATENCY", {"batch_sizes": (1, 2), "rounds": 2})
    said = lcprune("demo")
    assert said.code == 0, said.err
    rows = RunFolder.open("runs/demo").records("results")
    assert [row["network"] for row in rows] == [
        "original", "uniform 50 %", "naive 50 %", "lcp 50 %", "uniform 25 %", "naive 25 %", "lcp 25 %",
    ]  # fmt: skip
    for row in rows[1:]:
        assert row["macs_share"] <= row["limit"] and row["latency_ms"] > 0
        assert row["accuracy"] is not None and row["accuracy_before"] is not None
    for words in (
        "as cut (%)",
        "repaired (%)",
        "tuned (%)",
        "MACs (M)",
        "parameters (M)",
        "latency (ms)",
        "runs/demo/report.html",
    ):
        assert words in said.out
    page = Path("runs/demo/report.html").read_text(encoding="utf-8")
    for figure in ("frontier_macs", "before_after", "schedule", "search", "metric", "latency", "training"):
        assert f'id="figure-{figure}"' in page
    assert lcprune("demo").code == 2  # nothing is overwritten without being asked
    assert lcprune("demo", "--resume").code == 0
    assert RunFolder.open("runs/demo").records("results") == rows


@pytest.mark.parametrize("width", [80, 120])
def test_wide_tables_keep_the_names_of_the_networks(capfd, width):
    header = ["network", *(f"accuracy {i} (%)" for i in range(9)), "latency (ms)"]
    print_table("", header, [["uniform 60 % latency", *["93.77 ± 0.06"] * 9, "1.385"]], width)
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    named = [line for line in lines if "uniform 60 % latency" in line]
    assert len(named) > 1 and sum(line.count("93.77 ± 0.06") for line in named) == 9 and "1.385" in named[-1]
