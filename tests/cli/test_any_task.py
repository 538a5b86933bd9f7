"""Segmentation, audio, several inputs and regression go the whole way on the command line, in their own terms."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
QUICK = (
    "--set",
    "search.pool=4",
    "--set",
    "search.iterations=6",
    "--set",
    "tune.batch_size=16",
    "--device",
    "cpu",
    "-q",
)


def own(name: str) -> str:
    return f"{HERE / 'own_tasks.py'}:{name}"


# network, data, loss, score, what the score is called, whether more of it is better, what a trained network reaches
TASKS = {
    "segmentation": ("UNet", "masks", None, None, "mIoU", True, 0.6),
    "audio": ("audio_net", "sounds", None, None, "accuracy", True, 0.8),
    "two inputs": ("TwoInputs", "pairs", "both", None, "loss", False, 2.5),
    "regression": ("regression_net", "numbers", "squares", "absolute", "MAE", False, 0.2),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_whole_way(task, lcprune, monkeypatch):
    monkeypatch.setattr("lcprune.report.page.pictures", lambda: False)  # the page alone: PNG and SVG take seconds
    network, data, loss, score, called, higher, reached = TASKS[task]
    named = ("--data", own(data), *(("--loss", own(loss)) if loss else ()), *(("--score", own(score)) if score else ()))

    def run(*arguments):
        said = lcprune(*arguments)
        assert said.code == 0, said.err
        return said

    trained = run("train", own(network), *named, "--epochs", 4, "--set", "tune.lr=0.05", "--out", "a", *QUICK, "--json")
    (original,) = trained.json["results"]
    assert (original[called] > reached) == higher, original
    # Loss and score are those of the run that the network comes from.
    pruned = run("prune", "a", "--macs", "50%", "--epochs", 1, "--out", "b", *QUICK, "--json").json["results"][-1]
    assert pruned["macs_share"] <= 0.5 and {called, f"{called}_before", f"{called}_repaired"} <= set(pruned)
    table = run("tune", "b", "--epochs", 1, "--out", "c", *QUICK).out
    assert called in table and (called == "accuracy" or "accuracy" not in table)
    judged = run("evaluate", "c", "--device", "cpu", "--json").json
    results = json.loads(Path("c/records/results.json").read_text())
    assert judged[called] == pytest.approx(results[-1][called], rel=1e-4)
    run("report", "b", "c")
    page = Path("b/report.html").read_text()
    specs = json.loads(re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.S)[1])[
        "specs"
    ]
    assert called in json.dumps(specs["frontier_macs"]) and called in json.dumps(specs["training"])
    assert called == "accuracy" or "accuracy" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)
    run("export", "c", "--format", "torch", "--out", "n.pt2")
    program = torch.export.load(io.BytesIO(Path("n.pt2").read_bytes())).module()
    if task == "two inputs":
        answer = program(image=torch.zeros(3, 3, 8, 8), kind=torch.zeros(3, dtype=torch.int64))
        assert answer["what"].shape == (3, 3) and answer["size"].shape == (3,)


def test_compare_judges_by_the_score(lcprune):
    said = lcprune(
        *("compare", own("regression_net"), "--data", own("numbers"), "--loss", own("squares")),
        *("--score", own("absolute"), "--methods", "uniform,naive", "--macs", "50%", "--seeds", 2, "--epochs", 0),
        *("--repair", "none", "--out", "a", *QUICK),
    )
    assert said.code == 0, said.err
    table = Path("a/tables/results.md").read_text()
    assert "MAE as cut" in table or "| MAE" in " ".join(table.split())
    assert "MAE" in Path("a/tables/results.csv").read_text().splitlines()[0].split(",")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--data", own("numbers")), "targets are no class numbers (outputs (2, 1) float32, targets (2, 1) float32)"),
        (("--data", own("numbers"), "--loss", own("nothing")), "has no function called 'nothing'"),
        (("--data", own("numbers"), "--loss", own("absolute")), "the loss cannot be computed"),
        (("--data", own("pairs"), "--loss", own("both")), "cannot take inputs of image 3x8x8, kind int64"),
        (("--data", own("numbers"), "--loss", own("squares"), "--set", "tune.label_smoothing=0.1"), "leave it out"),
    ],
)
def test_what_does_not_fit_is_said_at_once(arguments, says, lcprune):
    said = lcprune("train", own("regression_net"), *arguments, "--epochs", 1, "--device", "cpu", "-q", "--no-report")
    assert said.code in (1, 2) and says in " ".join(said.err.split())
