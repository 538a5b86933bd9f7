"""Run folders on other file systems: worked on here, kept equal there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fsspec
import pytest

import lcprune
from lcprune.cli import main
from lcprune.mirror import Mirror, UrlStore
from lcprune.runs import RunFolder
from searching import searching

SHORT = {"pool": 4, "iterations": 8, "sample": 2, "images": 64}
SMALL = ["--set", "search.pool=4", "--set", "search.iterations=4", "--set", "search.images=64", "-q", "--no-report"]


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path) -> str:
    """A folder that does not exist yet, on two file systems."""
    place = f"memory://runs/{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/remote"
    yield place
    UrlStore(place).remove()


class Listed:
    """A store that only remembers what it was sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def fetch(self, folder: Path) -> None:
        (folder / "old").write_text("from before")

    def send(self, name: str, file: Path) -> None:
        self.sent.append((name, file.read_text()))


def test_changes_are_sent_once_and_in_their_order(tmp_path) -> None:
    store = Listed()
    mirror = Mirror(tmp_path / "folder", store, seconds=1000)
    mirror.fetch()
    with mirror:
        for number, name in enumerate(("z", "deep/a", "m")):  # not the order of their names
            file = tmp_path / "folder" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{number}")
            moment = time.time_ns() - 10**10 + number * 10**6
            os.utime(file, ns=(moment, moment))
        (tmp_path / "folder" / ".m.half").write_text("being written")
        mirror.send()
        assert store.sent == [("z", "0"), ("deep/a", "1"), ("m", "2")]
        (tmp_path / "folder" / "z").write_text("changed")
    assert store.sent[3:] == [("z", "changed")]


def test_a_file_that_changes_during_the_look_waits(tmp_path) -> None:
    """Otherwise a later file could arrive without an earlier one."""
    store = Listed()
    mirror = Mirror(tmp_path, store, seconds=1000)
    future = time.time_ns() + 10**11
    (tmp_path / "late").write_text("")
    os.utime(tmp_path / "late", ns=(future, future))
    mirror.send()
    assert store.sent == []


def test_a_file_that_is_written_again_while_others_are_sent_waits(tmp_path) -> None:
    """The row that says that a network is complete must not arrive before the network."""

    class Slow(Listed):
        def send(self, name: str, file: Path) -> None:
            super().send(name, file)
            if name == "log":
                (tmp_path / "network").write_text("whole")
                (tmp_path / "results").write_text("complete")

    store = Slow()
    for number, name in enumerate(("log", "results", "network")):
        (tmp_path / name).write_text("")
        moment = time.time_ns() - 10**10 + number * 10**6
        os.utime(tmp_path / name, ns=(moment, moment))
    mirror = Mirror(tmp_path, store, seconds=1000)
    mirror.send()
    assert store.sent == [("log", "")]
    time.sleep(0.05)
    mirror.send()
    assert sorted(store.sent[1:]) == [("network", "whole"), ("results", "complete")]


def test_what_can_never_be_sent_is_kept(tmp_path, monkeypatch) -> None:
    """Whoever lost the way to the bucket has not lost the work."""

    def refuse(self: UrlStore, name: str, file: Path) -> None:
        raise PermissionError("the token has expired")

    monkeypatch.setattr(UrlStore, "send", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunFolder.create(f"memory://runs/{tmp_path.name}", "prune", {"model": "x"})
    with pytest.raises(lcprune.errors.MirrorError, match=r"the token has expired; all of it is in .*unsent"), run:
        run.add("results", {"network": "lcp"})
    (copy,) = tmp_path.glob("lcprune-unsent-*")
    assert RunFolder.open(copy).records("results") == [{"network": "lcp"}]


def test_what_cannot_be_sent_is_said_at_the_end(tmp_path, caplog) -> None:
    class Broken(Listed):
        def send(self, name: str, file: Path) -> None:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"), Mirror(tmp_path, Broken(), seconds=0.01):
        (tmp_path / "a").write_text("")
        time.sleep(0.2)
    assert "could not be sent yet: no network" in caplog.text


def test_a_search_is_recorded_elsewhere_and_goes_on_from_there(plain, digits, url) -> None:
    options = {"macs": 0.5, **searching(digits.train, **SHORT), "progress": False}
    whole = lcprune.prune(plain.model, digits.example, run=url, **options)
    store = UrlStore(url)
    lines = store.files.cat_file(f"{store.root}/search.jsonl").split(b"\n")
    assert len(lines) == SHORT["pool"] + SHORT["iterations"] + 2
    store.files.pipe_file(f"{store.root}/search.jsonl", b"\n".join(lines[:6]) + b"\n")
    with pytest.raises(lcprune.SearchError, match="already holds records"):
        lcprune.prune(plain.model, digits.example, run=url, **options)
    resumed = lcprune.prune(plain.model, digits.example, run=lcprune.Job(url, resume=True), **options)
    assert [record.loss for record in resumed.history] == [record.loss for record in whole.history]
    assert len(store.files.cat_file(f"{store.root}/search.jsonl").split(b"\n")) == len(lines)


def test_a_command_s_folder(url, tmp_path, capsys) -> None:
    train = ["train", "digits_resnet", "--data", "digits", "--epochs", "1", "--device", "cpu", "-q", "--no-report"]
    prune = ["prune", f"{url}/net", "--macs", "50%", "--device", "cpu", *SMALL]
    assert main([*train, "--out", f"{url}/net"]) == 0
    assert main([*prune, "--out", f"{url}/smaller"]) == 0
    assert f"run folder: {url}/smaller" in capsys.readouterr().out
    names = UrlStore(f"{url}/smaller").names()
    assert {"config.toml", "log.txt", "plan.json", "model.safetensors", "records/results.json"} <= set(names)
    assert not [name for name in names if Path(name).name.startswith(".")]
    log = UrlStore(f"{url}/smaller").files.cat_file(f"{UrlStore(f'{url}/smaller').root}/log.txt")
    assert b"done after" in log
    assert main(["report", f"{url}/smaller"]) == 0
    assert f"{url}/smaller/report.html" in capsys.readouterr().out
    assert "report.html" in UrlStore(f"{url}/smaller").names()
    # It can be read, is not overwritten, and goes on.
    assert main(["evaluate", f"{url}/smaller", "--data", "digits", "--device", "cpu"]) == 0
    assert main([*prune, "--out", f"{url}/smaller"]) == 2
    assert "exists already" in capsys.readouterr().err
    before = RunFolder.open(f"{url}/smaller").records("results")
    UrlStore(f"{url}/smaller").files.rm(f"{UrlStore(f'{url}/smaller').root}/records/results.json")
    assert main([*prune, "--out", f"{url}/smaller", "--resume"]) == 0
    after = RunFolder.open(f"{url}/smaller").records("results")
    for row in (*before, *after):
        row.pop("search_seconds", None)
    assert after == before
    assert main([*prune, "--out", f"{url}/smaller", "--force"]) == 0
    assert main([*prune, "--out", f"{url}/nothing", "--resume"]) == 2
    assert f"there is no run folder {url}/nothing" in capsys.readouterr().err


def test_file_systems_that_are_not_known(plain, digits) -> None:
    with pytest.raises(lcprune.ConfigError, match="nowhere"):
        lcprune.prune(plain.model, digits.example, macs=0.5, method="naive", run="nowhere://run", progress=False)
    assert "memory" in fsspec.available_protocols()
