"""Running the command line as a person does, and a trained network to try it on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import few_digits
from lcprune.cli import main

# Seconds, not minutes: what is tested is the way through, not the accuracy.
QUICK = [
    "--set",
    "search.pool=4",
    "--set",
    "search.iterations=4",
    "--set",
    "search.images=128",
    "--device",
    "cpu",
    "--repair",
    "none",
]


@dataclass
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def lcprune(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`lcprune("prune", ...)` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a network that knows most digits."""
    folder = tmp_path_factory.mktemp("trained") / "train"
    arguments = ["train", few_digits.NET, "--data", "digits", "--epochs", 3, "--out", folder, "--quiet"]
    arguments += [
        "--device",
        "cpu",
        "--no-report",
        "--set",
        "tune.lr_decay=cosine",
        "--set",
        "tune.batch_size=64",
    ]
    assert main([str(argument) for argument in arguments]) == 0
    return folder


@pytest.fixture(scope="session")
def halved(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of that network at half its MACs, cut by `naive` and by `uniform`; to be read, not written."""
    folders = {method: tmp_path_factory.mktemp("halved") / method for method in ("naive", "uniform")}
    for method, folder in folders.items():
        arguments = ["prune", trained, "--macs", "50%", "--method", method, "--out", folder, "--no-report", "--quiet"]
        assert main([str(argument) for argument in [*arguments, *QUICK]]) == 0
    return folders


@pytest.fixture
def quick() -> list[str]:
    return list(QUICK)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer digits to train on, for tests of long ways; the test images are all there."""
    digits = few_digits.build()
    monkeypatch.setattr("lcprune.data.registry._digits", lambda: digits)
