"""The notebooks run from the first cell to the last, and are saved with what they print."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import few_digits

EXAMPLES = Path(__file__).parents[1] / "examples"
spec = importlib.util.spec_from_file_location("run_notebook", EXAMPLES / "run.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_runs_and_is_saved_with_what_it_prints(name, tmp_path, monkeypatch):
    few = few_digits.build()
    monkeypatch.setattr("lcprune.data.registry._digits", lambda: few)  # the ways are tried, not how well they do
    monkeypatch.chdir(tmp_path)
    saved, ran = json.loads((EXAMPLES / name).read_text(encoding="utf-8")), runner.run(EXAMPLES / name)
    assert saved["nbformat"] == 4 and saved["nbformat_minor"] >= 5 and saved["metadata"]["kernelspec"]["name"]
    assert len({cell["id"] for cell in saved["cells"]}) == len(saved["cells"])
    for old, new in zip(saved["cells"], ran["cells"], strict=True):
        assert old.keys() - {"outputs", "execution_count"} == {"cell_type", "id", "metadata", "source"}
        if old["cell_type"] == "code":
            counts = [sum(len(output["text"]) for output in cell["outputs"]) for cell in (old, new)]
            assert counts[0] == counts[1], f"run: python examples/run.py {name}"
