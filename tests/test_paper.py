"""The way from cells to tables: in pieces, stopped and gone on with, carried elsewhere, at a tiny scale on digits."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paper import best, figures, fleets, objectives, tables
from paper.cells import Cell, chosen, registry
from paper.run import Queue
from paper.scale import PAPER, TINY
from paper.store import Store, fold, unfold
from paper.work import Bench, Tuning
from torch import nn

import lcprune
from lcprune import tune
from lcprune.runs import RunFolder

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks" / "paper"
DATA = f"{Path(__file__).with_name('few_digits.py')}:build"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
NET = TINY.network
SOME = [f"{NET}/{name}" for name in ("metric", "tune/[ns]*-50/1", "objective/50/*", "best/naive-long-distilled/1")]


def cells_of(out: Path, *words: object) -> list[str]:
    command = [sys.executable, SCRIPTS / "run.py", "--data", DATA, "--tiny", "--device", "cpu", "--out", out]
    return [str(word) for word in (*command, *words)]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells run in two sessions, the first one stopped by SIGTERM, and carried elsewhere as tar files."""
    folder = tmp_path_factory.mktemp("paper")
    first, packs = folder / "first", folder / "packs"
    process = subprocess.Popen(
        cells_of(first, "--only", *SOME, "--pack", packs), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout
    for line in process.stdout:
        if "done" in line and "frontier" in line:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=60)
    second = folder / "second"
    unpack(packs, second)
    assert (second / NET / "frontier/l2/1/done.json").is_file()
    assert not (second / NET / "objective/50/naive/done.json").is_file()
    done = (second / NET / "frontier/l2/1/done.json").stat().st_mtime_ns
    subprocess.run(cells_of(second, "--only", *SOME, "--fleet", 3), check=True, env=ENVIRONMENT, timeout=120)
    assert (second / NET / "frontier/l2/1/done.json").stat().st_mtime_ns == done, "a finished cell was run again"
    return second


def unpack(packs: Path, out: Path) -> None:
    for path in packs.iterdir():
        with tarfile.open(path) as tar:
            tar.extractall(out, filter="data")


def test_every_cell_needs_cells_that_stand_before_it() -> None:
    for scale in (PAPER, TINY):
        seen: set[str] = set()
        for cell in registry(scale).values():
            assert seen.issuperset(cell.needs), cell
            seen.add(cell.name)


def test_what_a_table_needs_comes_with_it() -> None:
    cells = registry(PAPER)
    names = {cell.name for cell in chosen(cells, ["resnet56/tune/lcp-50/2"])}
    assert names == {"resnet56/tune/lcp-50/2", "resnet56/frontier/l2/2"}
    shown = {cell.name for cell in chosen(cells, [], ["table-1"])}
    trials = [
        f"resnet56/tune/{m}-{limit}/{n}" for m in ("uniform", "naive", "sweep") for limit in (70, 20) for n in (1, 3)
    ]
    assert shown.issuperset(trials) and "resnet56/metric" not in shown


@pytest.mark.slow
def test_a_stopped_session_goes_on_elsewhere_and_ends_in_tables(carried: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "results", TINY)
    assert f"{NET}/tune/naive-50/1" in store.gather(carried)
    store.save()
    page = tables.refresh("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in tables.TABLES), store)
    store = Store(tmp_path / "results", TINY)
    assert tables.refresh(page, store) == page, "the JSON alone gives the same page"
    (row,) = store.rows("results", f"{NET}/tune/naive-50/1")
    assert f"{100 * row['accuracy']:.2f} (1)" in page
    assert tables.MISSING in page and "run.py --show table-1" in page, "what is missing is said"
    assert figures.draw(store, tmp_path, ["figure-1", "figure-6", "objectives"]) == ["figure-1.svg", "objectives.svg"]


def test_tuning_cells_run_in_fleets_and_say_so(carried: Path) -> None:
    about = [json.loads(path.read_text()) for path in (carried / NET / "objective/50").glob("*/done.json")]
    assert sorted(one["fleet"] for one in about) == [2, 2, 3, 3, 3, 3, 3, 3]
    (row,) = json.loads((carried / NET / "objective/50/naive/records/objective.json").read_text())
    assert row["fleet"] == 3 and 0 < row["seconds"]["step1"] < row["seconds"]["step3"]
    told = ("loss", "distance", "accuracy")
    judged = {f"{after} {what}" for after in ("cut", "recalibrated", "repaired", "mended") for what in told}
    assert {*judged, "repaired squares", "mended_val_accuracy"} <= {name for name in row if row[name] is not None}
    assert {*objectives.OBJECTIVES} >= {name for name in objectives.objectives_of([row]) if "step" not in name}
    older = {name: value for name, value in row.items() if not name.startswith(("repaired", "mended"))}
    assert "repaired loss" not in objectives.objectives_of([row, older]), "of some selections alone"
    plain = [json.loads((carried / NET / f"tune/{name}-50/1/done.json").read_text()) for name in ("naive", "sweep")]
    assert [one["fleet"] for one in plain] == [2, 2], "one network, one recipe"
    distilled = json.loads((carried / NET / "best/naive-long-distilled/1/done.json").read_text())
    assert "fleet" not in distilled, "another recipe: by itself"


@pytest.fixture
def bench(tmp_path: Path, carried: Path) -> Bench:
    """Tunings of three epochs, with the searches that are done already."""
    (tmp_path / NET).mkdir()
    for name in ("frontier", "sweep"):
        (tmp_path / NET / name).symlink_to(carried / NET / name)
    return Bench(DATA, tmp_path, replace(TINY, epochs=3), "cpu")


@pytest.mark.slow
def test_a_fleet_of_cells_goes_on_where_it_stopped_and_ends_as_fit_does(bench: Bench) -> None:
    known = registry(bench.scale)
    cells = [known[f"{NET}/tune/{name}/1"] for name in ("naive-50", "uniform-70", "sweep-50")]
    stopped = dict.fromkeys((cell.name for cell in cells), "stopped")
    assert fleets.do(bench, cells, time.time()) == stopped, "out of time after the first step"
    assert len({fleets.key_of(cell, bench.out) for cell in cells}) == 1
    assert bench.run(cells[0], time.time()) is False, "one step by itself"
    keys = [fleets.key_of(cell, bench.out) for cell in cells]
    assert keys[0] != keys[1] == keys[2], "it is elsewhere now"
    damaged = bench.out / known[f"{NET}/tune/uniform-50/1"].name / "tuning" / "checkpoint.safetensors"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no checkpoint")
    assert fleets.key_of(known[f"{NET}/tune/uniform-50/1"], bench.out) is None
    assert fleets.do(bench, cells, math.inf) == dict.fromkeys(stopped, fleets.ALONE)
    assert fleets.do(bench, cells[1:], math.inf) == dict.fromkeys((cell.name for cell in cells[1:]), "done")
    assert bench.run(cells[0])
    for cell in cells:
        assert not (bench.out / cell.name / "tuning" / "checkpoint.safetensors").exists()
        ours = lcprune.load(bench.out / cell.name, bench.network(NET))
        plan = lcprune.Plan.load(bench.out / cell.name / "plan.json")
        same, other = (
            tune.fit(
                plan.apply(bench.network(NET)),
                bench.dataset,
                tune.recipe("finetune", epochs=3, seed=seed),
                progress=False,
                device="cpu",
            ).model
            for seed in (1, 2)
        )
        # Rounding grows with every step, but does not make another run of it.
        assert apart(ours, same) < 0.3 * apart(other, same)


def test_what_goes_wrong_in_a_fleet_stays_with_the_cell_it_belongs_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [registry(bench.scale)[f"{NET}/tune/{name}/1"] for name in ("naive-50", "uniform-70", "sweep-50")]
    build = Tuning.__init__

    def spoilt(self: Tuning, bench: Bench, cell: Cell, run: RunFolder) -> None:
        build(self, bench, cell, run)
        if cell is cells[1]:
            self.model.linear.bias.data.fill_(math.nan)

    monkeypatch.setattr(Tuning, "__init__", spoilt)
    first, lost, last = fleets.do(bench, cells, math.inf).values()
    assert first == last == fleets.AGAIN and lost.startswith("LostMembers: the loss of member 1")
    assert set(fleets.do(bench, [cells[0], cells[2]], math.inf).values()) == {"done"}


def apart(ours: nn.Module, theirs: nn.Module) -> float:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return math.sqrt(sum(float((a - b).detach().square().sum()) for a, b in pairs))


def test_searches_come_first_then_full_fleets(tmp_path: Path) -> None:
    cells = chosen(
        registry(TINY),
        [*(f"{NET}/tune/{m}-50/*" for m in ("sweep", "naive", "uniform", "lcp")), f"{NET}/best/naive-long-distilled/1"],
    )
    later = Cell("later", "frontier", NET)
    queue = Queue([*cells, later], tmp_path, math.inf, {}, fleet=4)
    light = []
    while (taken := queue.take())[0].kind == "frontier":
        light.append(taken[0].name)
        (tmp_path / taken[0].name).mkdir(parents=True)
        (tmp_path / taken[0].name / "done.json").touch()
        queue.finish(taken, {taken[0].name: "done"})
    assert light == [cell.name for cell in cells[: len(light)]] and len(light) > 2
    wanted = [cell for cell in cells if cell.kind == "tune" and "distilled" not in cell.name]
    assert taken == wanted[:4]
    assert queue.take() == [later], "a search, beside the fleet"
    # One is lost, one has no place in a fleet: the rest go again, with the next ones in order.
    outcomes = ["again", "ValueError: lost", "alone", "again"]
    queue.finish(taken, dict(zip([cell.name for cell in taken], outcomes, strict=True)))
    again = queue.take()
    assert again == [wanted[0], *wanted[3:6]]
    queue.finish(again, {cell.name: "done" for cell in again})
    assert queue.take() == [wanted[2]], "by itself"


def test_our_best_is_chosen_once_and_on_validation_images(
    carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", DATA, "--tiny", "--device", "cpu", "--runs", str(carried), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["best.py", *words])
    best.main()
    record = json.loads((tmp_path / "best.json").read_text())
    assert len(record["candidates"]) == 3 and 0 <= record["test_accuracy"] <= 1
    assert record["candidates"][record["chosen"]] == max(record["candidates"].values())
    with pytest.raises(SystemExit, match="exists"):
        best.main()
    for name in record["candidates"]:
        if "/best/" in name:
            (row,) = json.loads((carried / name / "records" / "results.json").read_text())
            assert "accuracy" not in row, "a candidate was judged on test images"


def test_selections_differ_and_meet_their_limit(carried: Path) -> None:
    found = {}
    for file in (carried / NET / "objective" / "50").glob("*/records/objective.json"):
        (row,) = json.loads(file.read_text())
        assert row["macs_share"] <= 0.5
        found[row["method"]] = row
    assert {"naive", "uniform", "lcp-1", "lcp-2", "random-1-1", "random-1-2"} <= set(found)
    assert len({row["cut loss"] for row in found.values()}) >= 4
    assert found["random-1-1"]["removed"] > found["naive"]["removed"] * 0.9


def test_rank_correlation() -> None:
    rng = np.random.default_rng(0)
    assert objectives.spearman(np.arange(9.0), np.exp(np.arange(9.0))) == pytest.approx(1)
    assert objectives.spearman(np.array([1.0, 1, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(0.9486833)
    values = rng.integers(5, size=(2, 12)).astype(float)
    drawn = rng.integers(12, size=12)
    times = np.bincount(drawn, minlength=12)[None]
    assert objectives.spearman(*values, times) == pytest.approx(objectives.spearman(*values[:, drawn]))
    loss = rng.random(40)
    rows = [
        {"cut loss": 1 + x, "full loss": 1.0, "val_loss": x + 0.3 * y}
        for x, y in zip(loss, rng.random(40), strict=True)
    ]
    found = objectives.correlate(rows, "cut loss")
    assert found["low"] < found["rho"] < found["high"] <= 1 and found["rho"] > 0.7
    turned = [{**row, "val_accuracy": -row["val_loss"]} for row in rows]
    assert objectives.correlate(turned, "cut loss", "val_accuracy")["rho"] == pytest.approx(found["rho"])


def test_rows_survive_folding() -> None:
    rows = [{"a": 1, "b": "x", "c": 0.123456789}, {"a": 2, "b": "x", "c": None}]
    assert unfold(fold(rows)) == [{"b": "x", "a": 1, "c": 0.1234568}, {"b": "x", "a": 2, "c": None}]
    assert unfold(fold([])) == [] and unfold(fold(rows[:1]))[0]["a"] == 1


def test_the_pages_are_what_the_records_say() -> None:
    store, written = Store(), ""
    for path in tables.pages():
        page = path.read_text(encoding="utf-8")
        assert tables.refresh(page, store) == page, "run python benchmarks/paper/tables.py"
        written += page
    for name in tables.TABLES:
        assert written.count(f"<!-- table: {name} -->") == 1
    for name in figures.FIGURES:
        assert written.count(f"<!-- figure: {name} -->") == 1
