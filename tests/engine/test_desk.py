"""Folders of tasks: worked on here, kept equal on another machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import lcprune
from lcprune.engine.desk import Mirror
from lcprune.runs import RunFolder


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


def test_what_cannot_be_sent_is_said_at_the_end(tmp_path, caplog) -> None:
    class Broken(Listed):
        def send(self, name: str, file: Path) -> None:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"), Mirror(tmp_path, Broken(), seconds=0.01):
        (tmp_path / "a").write_text("")
        time.sleep(0.2)
    assert "could not be sent yet: no network" in caplog.text


@pytest.mark.parametrize("use", [RunFolder.open, lcprune.Job])
def test_a_url_is_not_taken_for_a_folder(use) -> None:
    with pytest.raises(lcprune.ConfigError, match="s3://bucket/run is not on this machine"):
        use("s3://bucket/run")
