"""The way from ImageNet's weights to pruned networks on birds, at a tiny scale: in pieces, and into a table."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from paper import birds, birds_cells, tables
from paper.birds import Bench
from paper.birds_cells import BIRDS, TINY
from paper.store import MISSING, Store
from PIL import Image

from lcprune.runs import RunFolder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three kinds of birds, ten to train on and four to test on of each."""
    folder, rng = tmp_path_factory.mktemp("birds"), np.random.default_rng(0)
    for part, count in (("train", 10), ("test", 4)):
        for label in ("wren", "tern", "crow"):
            (folder / part / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(256, size=(4, 5, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((50, 40)).save(folder / part / label / f"{number}.webp")
    return folder


def test_cells_need_cells_that_stand_before_them() -> None:
    seen: set[str] = set()
    for cell in birds_cells.cells(BIRDS):
        assert seen.issuperset(cell.needs), cell
        seen.add(cell.name)
    assert {f"birds/tune/{method}-51/1" for method in birds_cells.METHODS} <= seen


@pytest.mark.slow
def test_from_photographs_to_the_table(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, spec = tmp_path / "runs", f"cub200:{photographs}"
    cells = {cell.name: cell for cell in birds_cells.cells(TINY)}
    late = Bench(spec, None, out, TINY, "cpu", deadline=time.time())
    assert late.run(cells["birds/rate/0.01"]) is False, "time was over after the first of two epochs"

    judged: list[str] = []
    look = birds.tune.evaluate
    monkeypatch.setattr(birds.tune, "evaluate", lambda m, d, s, **more: judged.append(s) or look(m, d, s, **more))
    words = ["birds.py", "--tiny", "--data", spec, "--out", str(out), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*words, "--only", "birds/rate/*", "birds/cuts/1"])
    birds.main()
    assert judged == ["val", "test", "val", "val", "val"], "only the finished baseline is judged on test images"
    monkeypatch.setattr(sys, "argv", [*words, "--only", "birds/tune/*/1"])
    birds.main()
    said = capsys.readouterr().out
    assert said.count("done birds/rate/0.0001") == said.count("done birds/baseline") == 1, "done once"

    rates = [RunFolder.open(out / f"birds/rate/{rate:g}").records("results")[0] for rate in TINY.rates]
    (baseline,) = RunFolder.open(out / "birds/baseline").records("results")
    assert baseline["lr"] == max(rates, key=lambda row: row["val_accuracy"])["lr"]
    assert all("accuracy" not in row for row in rates)

    store = Store(tmp_path / "results")
    assert "birds/tune/lcp-51/1" in store.gather(out)
    store.save()
    page = birds_cells.table_birds(Store(tmp_path / "results"))
    for row in store.rows("results", "birds/tune/"):
        assert row["macs_share"] <= 0.51 and f"{100 * row['accuracy']:.2f} (1)" in page
    assert page.count("(1)") == 11 and "80.22" in page
    assert "(chosen)" in birds_cells.table_rates(store)
    assert len(store.rows("search", "birds/cuts/1")) == TINY.pool + TINY.iterations
    assert tables.TABLES["birds"](Store(tmp_path / "empty")).count(MISSING) >= 4

    assert "birds-again/baseline" in store.gather(out, again=True)
    both = birds_cells.table_birds(store).splitlines()
    assert [line.split("|")[1].strip() for line in both if "baseline" in line][1:] == [
        "MobileNetV2 on birds, second baseline"
    ]
    assert sum(line.startswith("| naive ") for line in both) == 2
    assert store.has("birds/baseline") and not store.has("birds/printed")
