"""Other methods in figure 2: cut with weights of their own, from which tuning begins."""

from __future__ import annotations

from pathlib import Path

import torch
from paper import figures, rivals
from paper.cells import registry
from paper.scale import TINY
from paper.store import Store
from paper.work import Bench, Tuning

import lcprune
from lcprune.runs import RunFolder

NET = TINY.network


def test_a_method_s_own_weights_are_tuned_and_shown(tmp_path: Path) -> None:
    cells, out = registry(TINY), tmp_path / "runs"
    bench = Bench(f"{Path(__file__).with_name('few_digits.py')}:build", out, TINY, "cpu")
    for method in rivals.WORDS:
        name = f"{method}-50/1"
        cut, tuned = cells[f"{NET}/method/{name}"], cells[f"{NET}/rival/{name}"]
        assert tuned.needs == (cut.name,)
        assert bench.run(cut)
        begins = Tuning(bench, tuned, RunFolder.create(tmp_path / method, "paper", {})).model.state_dict()
        left = lcprune.load(out / cut.name, bench.network(NET)).state_dict()
        plain = lcprune.Plan.load(out / cut.name / "plan.json").apply(bench.network(NET)).state_dict()
        assert all(torch.equal(begins[key], left[key]) for key in left)
        assert any(not torch.equal(begins[key], plain[key]) for key in plain), "the method changed weights"
        assert bench.run(tuned)
    store = Store(tmp_path / "results", TINY)
    store.gather(out)
    table = rivals.table_rivals(store)
    for method in rivals.WORDS:
        (before,) = store.rows("results", f"{NET}/method/{method}-50/1")
        (row,) = store.rows("results", f"{NET}/rival/{method}-50/1")
        assert row["macs_share"] <= 0.5 and "accuracy" not in before
        assert row["val_accuracy_before"] == before["val_accuracy_before"]
        assert f"{100 * row['accuracy']:.2f} (1)" in table
    assert "93.51" in table
    assert figures.draw(store, tmp_path, ["figure-2"]) == ["figure-2.svg"]
    assert all(word in (tmp_path / "figure-2.svg").read_text() for word in ("MorphNet", "single-filter pruning"))
