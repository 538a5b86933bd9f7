"""Train, prune, tune, evaluate, export, report: each command on what the one before wrote."""

from __future__ import annotations

import json

import pytest

import few_digits
import lcprune as library
from lcprune import models
from lcprune.runs import RunFolder
from lcprune.search import read_records


def test_training_leaves_a_network_that_evaluates(lcprune, trained):
    said = lcprune("evaluate", trained, "--json", "--device", "cpu")
    assert said.code == 0
    assert said.json["accuracy"] > 0.6 and said.json["images"] == 359
    assert RunFolder.open(trained).records("results")[0]["accuracy"] == pytest.approx(said.json["accuracy"])


def test_prune_meets_the_limit_and_its_folder_is_a_network(lcprune, trained, few, quick):
    said = lcprune("prune", trained, "--macs", "50%", "--out", "half", "--epochs", 1, *quick, "--json")
    assert said.code == 0, said.err
    original, half = said.json["results"]
    assert half["macs"] <= 0.5 * original["macs"] < half["macs"] * 1.05
    run = RunFolder.open("half")
    assert run.settings["macs"] == "50%" and run.settings["search"]["pool"] == 4
    assert run.settings["search"]["mutate"] == 0.1  # resolved: defaults are written too
    for kind in ("schedule", "search", "training"):
        assert run.records(kind), kind
    assert run.file("report.html").is_file() and "half" in said.json["run"]

    network = library.load("half", models.build(few_digits.NET, num_classes=10))
    example = models.example_input(few_digits.NET)
    assert library.trace(network, example).macs == half["macs"]
    again = lcprune("evaluate", "half", "--json", "--device", "cpu")
    assert again.json["accuracy"] == pytest.approx(half["accuracy"])


def test_who_tunes_ranks_by_another_metric(lcprune, trained, quick):
    wanted = {"tuned": ["--epochs", 1], "not": [], "named": ["--epochs", 1, "--metric", "l1"]}
    for name, more in wanted.items():
        said = lcprune("prune", trained, "--macs", "50%", "--out", name, *more, *quick, "--no-report", "--json")
        assert said.code == 0, said.err
    found = {name: library.Plan.load(f"{name}/plan.json").meta["metric"] for name in wanted}
    assert found == {"tuned": "l2", "not": "rebuilt", "named": "l1"}


def test_without_data_there_are_naive_and_uniform(lcprune):
    said = lcprune("prune", "resnet20", "--method", "naive", "--params", "50%", "--out", "a", "--no-report", "--json")
    assert said.code == 0, said.err
    assert said.json["results"][1]["params_share"] <= 0.5
    assert "accuracy" not in said.json["results"][1]


def test_tune_takes_up_a_pruned_network_with_its_teacher(lcprune, halved):
    said = lcprune(
        "tune", halved["naive"], "--epochs", 2, "--set", "tune.distill=0.5", "--out", "tuned", "--json", "-q"
    )
    assert said.code == 0, said.err
    tuned, cut = said.json["results"][-1], RunFolder.open(halved["naive"]).records("results")[-1]
    assert tuned["accuracy"] > tuned["accuracy_before"]
    assert all(tuned[name] == cut[name] for name in ("macs", "accuracy_before"))
    again = lcprune("evaluate", "tuned", "--json", "--device", "cpu")
    assert again.json["accuracy"] == pytest.approx(tuned["accuracy"])
    assert RunFolder.open("tuned").file("report.html").is_file()


@pytest.mark.parametrize(("form", "name"), [("onnx", "n.onnx"), ("torch", "n.pt2"), ("safetensors", "n")])
def test_export_writes_a_network_that_was_compared(lcprune, halved, form, name, tmp_path):
    said = lcprune("export", halved["uniform"], "--format", form, "--out", name, "--json")
    assert said.code == 0, said.err
    assert said.json["max_error"] < 1e-4 and (tmp_path / name).exists()
    assert lcprune("export", halved["uniform"], "--format", form, "--out", name).code == 2


def test_export_to_onnx_warns_of_widths_that_processors_dislike(lcprune, trained, halved):
    cut = [
        "prune",
        trained,
        "--macs",
        "50%",
        "--method",
        "uniform",
        "--repair",
        "none",
        "--multiple-of",
        8,
        "--no-report",
    ]
    assert lcprune(*cut, "--out", "eights", "-q").code == 0
    for folder, warned in ((halved["uniform"], True), ("eights", False)):
        said = lcprune("export", folder, "--out", "warned.onnx", "--force")
        assert said.code == 0 and ("--multiple-of 8" in said.out) is warned


def test_compare_gives_mean_and_deviation_in_three_forms(lcprune, trained, few, quick, tmp_path):
    said = lcprune(
        "compare", trained, "--macs", "50%", "--methods", "uniform,naive", "--seeds", 2, "--epochs", 1,
        "--out", "cmp", *quick, "--repair", "statistics", "--no-report", "-q",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.out.count("±") == 6  # as cut, repaired and tuned
    assert "±" in (tmp_path / "cmp/tables/results.md").read_text()
    assert r"$\pm$" in (tmp_path / "cmp/tables/results.tex").read_text()
    assert len((tmp_path / "cmp/tables/results.csv").read_text().splitlines()) == 1 + 1 + 4
    before = RunFolder.open("cmp").records("results")
    assert lcprune("compare", "--out", "cmp", "--resume", "--no-report", "-q").code == 0
    assert RunFolder.open("cmp").records("results") == before


def test_pareto_uses_one_search_for_all_limits(lcprune, trained, few, quick):
    said = lcprune("pareto", trained, "--macs", "60%,40%", "--out", "front", *quick, "--no-report", "--json", "-q")
    assert said.code == 0, said.err
    rows = {row["network"]: row for row in said.json["results"]}
    assert len(rows) == 7
    for name in ("lcp", "naive", "uniform"):
        assert rows[f"{name} 40 %"]["macs_share"] <= 0.4 < rows[f"{name} 60 %"]["macs_share"] <= 0.6
    assert {row["network"] for row in RunFolder.open("front").records("search")} == {
        "lcp 60 %",
        "lcp 40 %",
    }  # a part each
    for share in (60, 40):  # how its candidates were judged is said of each limit
        config = read_records(f"front/search/search-{share / 100:g}.jsonl")[0]["config"]
        assert rows[f"lcp {share} %"]["after"] == config["evaluation.after"] == "repair"
    assert "after" not in rows["naive 40 %"]
    again = lcprune("pareto", "--out", "front", "--resume", "--no-report", "--json", "-q")
    assert again.code == 0, again.err
    assert again.json["results"] == said.json["results"]


def test_report_from_several_runs_names_them(lcprune, halved, tmp_path):
    said = lcprune("report", halved["naive"], halved["uniform"], "--out", "both/page.html", "--json")
    assert said.code == 0, said.err
    assert "naive: naive 50 %" in (tmp_path / "both/page.html").read_text()
    assert (tmp_path / "both/figures/frontier_macs.png").is_file()


def test_latency_measures_networks_side_by_side(lcprune, trained):
    said = lcprune("latency", trained, "digits_resnet", "--batch-sizes", "1,2", "--json", "--device", "cpu", "-q")
    assert said.code == 0, said.err
    assert [row["batch_size"] for row in said.json["latency"]] == [1, 1, 2, 2]
    assert all(row["ms"] > 0 for row in said.json["latency"])


def test_latency_runs_networks_as_a_backend_does(lcprune):
    pytest.importorskip("onnxruntime")
    said = lcprune("latency", "digits_resnet", "--batch-sizes", "1", "--backend", "onnx", "-q")
    assert said.code == 0 and "Milliseconds per image on cpu" in said.out, said.err


def test_a_pruned_network_can_be_pruned_again(lcprune, halved, quick):
    again = ["prune", halved["naive"], "--macs", "60%", "--method", "naive", *quick, "--no-report", "--json"]
    said = lcprune(*again, "--out", "two")
    assert said.code == 0, said.err
    again = lcprune("evaluate", "two", "--json", "--device", "cpu")
    assert again.json["accuracy"] == pytest.approx(said.json["results"][-1]["accuracy"])


def test_a_network_and_data_of_ones_own(lcprune, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom torch import nn\n"
        "INPUT_SHAPE = (1, 8, 8)\n"
        "def net(num_classes=10):\n"
        "    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),\n"
        "                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    x = rng.integers(0, 255, (80, 8, 8, 1), dtype=np.uint8)\n"
        "    y = rng.integers(0, 3, 80)\n"
        "    return dict(x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])\n"
    )
    seen = lcprune("inspect", "mine.py:net", "--json").json
    assert [group["size"] for group in seen["groups"]] == [16, 16]
    said = lcprune("train", "mine.py:net", "--data", "mine.py:data", "--epochs", 1, "--out", "t", "--json", "-q")
    assert said.code == 0, said.err
    assert json.loads(lcprune("evaluate", "t", "--json").out)["images"] == 20
    assert RunFolder.open("t").settings["num_classes"] == 3
