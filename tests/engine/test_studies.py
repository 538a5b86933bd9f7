"""`--engine ray`: the same run folders as on one machine, with each network made by a task."""

from __future__ import annotations

import re
import shutil
import sys

import pytest
from engine_helpers import rows, same_weights, write_network

from lcprune.cli import main
from lcprune.runs import RunFolder


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> str:
    return write_network(tmp_path_factory.mktemp("network"))


SMALL = ["--set", "search.pool=4", "--set", "search.iterations=4", "--set", "search.images=64"]
SMALL += ["--quiet", "--no-report"]


def prune(network, out, *more: str) -> int:
    command = ["prune", network, "--data", "digits", "--macs", "50%", "--epochs", "1", "--device", "cpu"]
    return main([*command, *SMALL, "--repair", "stand-ins", "--out", str(out), *more])


def compare(network, out, *more: str) -> int:
    command = ["compare", network, "--data", "digits", "--macs", "50%", "--epochs", "1", "--seeds", "2"]
    return main(
        [*command, *SMALL, "--methods", "naive,lcp", "--device", "cpu", "--repair", "none", "--out", str(out), *more]
    )


@pytest.mark.slow
def test_prune_with_one_worker_writes_what_the_local_run_writes(network, ray, tmp_path) -> None:
    assert prune(network, tmp_path / "here") == 0
    assert prune(network, tmp_path / "there", "--engine", "ray", "--workers", "1") == 0
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert same_weights(tmp_path / "here", tmp_path / "there")
    for kind in ("schedule", "search", "training"):
        assert RunFolder.open(tmp_path / "here").records(kind) == RunFolder.open(tmp_path / "there").records(kind)
    settings = RunFolder.open(tmp_path / "there").settings
    assert settings["engine"] == "ray" and settings["workers"] == 1 and settings["search"]["together"] == 1
    # Nothing is left to do, and any number of workers, or none, may see to it.
    for more in (["--workers", "2"], ["--engine", "local"]):
        again = ["prune", network, "--out", str(tmp_path / "there"), "--resume", "--quiet", "--no-report"]
        assert main([*again, *more]) == 0


@pytest.fixture(scope="module")
def compared(network, ray, tmp_path_factory):
    """A comparison whose networks were made by tasks."""
    folder = tmp_path_factory.mktemp("compared") / "run"
    assert compare(network, folder, "--engine", "ray") == 0
    return folder


def test_compare_is_the_local_comparison(network, compared, tmp_path) -> None:
    assert compare(network, tmp_path / "here") == 0
    assert rows(tmp_path / "here") == rows(compared)
    for kind in ("schedule", "search", "training"):
        assert RunFolder.open(tmp_path / "here").records(kind) == RunFolder.open(compared).records(kind)
    for name in ("naive-50-pc", "lcp-50-pc", "lcp-50-pc-seed-1"):
        assert same_weights(tmp_path / "here" / "networks" / name, compared / "networks" / name)
    log = (compared / "log.txt").read_text()
    assert "[lcp 50 %, seed 1, " in log
    # Two cores, so two processes: none gives its core away while it waits for files.
    assert len(set(re.findall(r"pid (\d+)", log))) == 2


def test_networks_that_were_complete_are_not_made_again(network, compared, tmp_path) -> None:
    """As if the driver had died before it could record them."""
    folder = tmp_path / "run"
    shutil.copytree(compared, folder)
    stamps = {file: file.stat().st_mtime_ns for file in (folder / "networks").rglob("*.safetensors")}
    shutil.rmtree(folder / "records")
    lost = folder / "networks" / "lcp-50-pc"
    (lost / "outcome.json").unlink()
    assert main(["compare", network, "--out", str(folder), "--resume", "--quiet", "--no-report"]) == 0
    assert rows(folder) == rows(compared)
    made_again = {file for file, stamp in stamps.items() if file.stat().st_mtime_ns != stamp}
    assert made_again and all(lost in file.parents for file in made_again)


def test_wrong_usage(network, tmp_path, capsys, monkeypatch) -> None:
    assert prune(network, tmp_path / "a", "--engine", "spark") == 2
    assert "there is no engine 'spark'" in capsys.readouterr().err
    assert prune(network, tmp_path / "a", "--workers", "3") == 2
    assert prune(network, tmp_path / "a", "--asynchronous") == 2
    monkeypatch.setitem(sys.modules, "ray", None)
    capsys.readouterr()
    assert prune(network, tmp_path / "a", "--engine", "ray") == 2
    assert "pip install lcprune[ray]" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_latency_is_measured_by_the_process_that_leads(network, ray, tmp_path) -> None:
    """A worker shares its machine with others, and may be another kind of machine."""
    out = tmp_path / "run"
    command = ["prune", network, "--data", "digits", "--method", "naive", "--latency", "60000ms", "--macs", "90%"]
    more = ["--device", "cpu", "--quiet", "--no-report", "--engine", "ray", "--workers", "1"]
    assert main([*command, *more, "--out", str(out)]) == 0
    lines = [line for line in (out / "log.txt").read_text().splitlines() if "latency: limit" in line]
    assert lines and not any("[" in line for line in lines)
    assert next(out.glob("networks/*/held.json"))
    assert rows(out)[-1]["latency_ms"] > 0
