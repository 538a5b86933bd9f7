"""Any function over any items, and the paper's cells with it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

import lcprune
from lcprune.engine import LocalEngine
from lcprune.engine.cluster import Share, default_workers, divide


@pytest.mark.parametrize(
    ("count", "machines", "expected"),
    [
        (1, [{"CPU": 8}], Share(8, 0.0)),
        (3, [{"CPU": 8}], Share(2, 0.0)),
        (2, [{"CPU": 1}] * 4, Share(1, 0.0)),  # no machine has two cores
        (2, [{"CPU": 3}, {"CPU": 2}], Share(2, 0.0)),
        (9, [{"CPU": 4}], Share(1, 0.0)),  # some wait for room
        (4, [{"CPU": 16, "GPU": 4}], Share(1, 1.0)),
        (8, [{"CPU": 16, "GPU": 4}], Share(1, 0.5)),
        (5, [{"CPU": 16, "GPU": 2}, {"CPU": 16, "GPU": 2}], Share(1, 0.5)),
        (1, [{"CPU": 16, "GPU": 4}], Share(1, 1.0)),
    ],
)
def test_shares(count, machines, expected) -> None:
    assert divide(count, machines) == expected


def test_one_worker_per_gpu_or_core() -> None:
    machines = [{"CPU": 16, "GPU": 4}, {"CPU": 8}]
    assert default_workers(machines) == 4 and default_workers(machines, use_gpus=False) == 24
    assert divide(2, machines, use_gpus=False) == Share(8, 0.0)


def test_what_is_shared_brings_the_users_own_modules_along(ray, two, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("from torch import nn\nclass Net(nn.Linear): pass\ndef net(): return Net(2, 3)\n")
    shared = two.share(lcprune.models.build(f"{tmp_path}/mine.py:net"))
    assert list(two.map(lambda item: item.get().out_features, [shared])) == [(0, 3)]


def test_results_come_with_their_positions(ray, two) -> None:
    for engine in (LocalEngine(), two):
        shared = engine.share(list(range(100)))
        found = dict(engine.map(lambda item: sum(item[0].get()) + item[1], [(shared, n) for n in range(5)]))
        assert found == {n: 4950 + n for n in range(5)}
        assert list(engine.map(str, [])) == []


def test_a_task_whose_process_dies_is_run_again(ray, two, tmp_path) -> None:
    def dies_once(name: str) -> str:
        flag = tmp_path / name
        if name == "a" and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return name

    assert dict(two.map(dies_once, ["a", "b"])) == {0: "a", 1: "b"}


def test_a_task_that_always_dies_and_one_that_raises(ray, two, monkeypatch) -> None:
    monkeypatch.setattr("lcprune.engine.cluster.RETRIES", 0)
    with pytest.raises(lcprune.EngineError, match="heavy: its process or machine died"):
        list(two.map(lambda _: os.kill(os.getpid(), signal.SIGKILL), [0], names=["heavy"]))
    with pytest.raises(KeyError, match="mine"):
        list(two.map(lambda item: {}[item], ["mine"]))


@pytest.mark.slow
def test_cells_of_the_paper(ray, tmp_path, monkeypatch) -> None:
    from paper import cluster

    command = ["cluster.py", "--data", "digits", "--tiny", "--workers", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--only", "digits_resnet/tune/lcp-50/1"])
    with pytest.raises(SystemExit) as left:
        cluster.main()
    assert not left.value.code
    names = {file.parent.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("done.json")}
    assert names == {"digits_resnet/frontier/l2/1", "digits_resnet/tune/lcp-50/1"}
