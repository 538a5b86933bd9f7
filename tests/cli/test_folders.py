"""A network in a folder is one for every command, whoever wrote it; what a folder lacks is named."""

from __future__ import annotations

import json

import pytest
import torch

import few_digits
import lcprune as library
from lcprune import models
from lcprune.runs import RunFolder

OWN = (
    "from torch import nn\n"
    "INPUT_SHAPE = (1, 8, 8)\n"
    "def net(num_classes=10):\n"
    "    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),\n"
    "                         nn.Linear(16, num_classes))\n"
)


def cut(model, **more):
    return library.prune(model, models.example_input(few_digits.NET), macs=0.5, method="naive", progress=False, **more)


@pytest.mark.parametrize("how", ["save", "run", "networks", "weights"])
def test_every_command_takes_a_network_in_a_folder(lcprune, halved, trained, how, tmp_path):
    words = {
        "save": ["saved", "--data", "digits"],
        "run": ["run", "--data", "digits"],
        "networks": [halved["naive"] / "networks" / "naive-50-pc"],  # with the data of its run
        "weights": [few_digits.NET, "--weights", halved["naive"]],
    }[how]
    if how in ("save", "run"):
        weights = trained / "model.safetensors"
        result = cut(models.build(few_digits.NET, 10, weights), run="run" if how == "run" else None)
        result.save("saved")
        if how == "run":
            assert {path.name for path in (tmp_path / "run").iterdir()} == {"plan.json", "model.safetensors"}
    loss = lcprune("evaluate", *words, "--json", "--device", "cpu").json["loss"]
    said = lcprune("tune", *words, "--epochs", 0, "--out", "tuned", "--no-report", "--json", "-q", "--device", "cpu")
    assert said.code == 0, said.err
    again = lcprune("evaluate", "tuned", "--data", "digits", "--json", "--device", "cpu")
    assert again.json["loss"] == loss, "the tuned folder is a network, too"
    if how != "weights":
        exported = lcprune("export", words[0], "--format", "safetensors", "--out", "files", "--json")
        assert exported.code == 0, exported.err
        page = lcprune("report", words[0], "--out", "page.html", "--json")
        assert page.code == 0 and "Layer schedule" in (tmp_path / "page.html").read_text(), page.err


def test_a_folder_that_does_not_name_its_network_says_what_to_do(lcprune, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    model = models.build("own.py:net")
    del model._lcprune_origin  # as if it were built elsewhere
    result = cut(model)
    result.save("own")
    said = lcprune("export", "own")
    assert said.code == 2 and "a Sequential" in said.err and "MODEL --weights own" in said.err
    with pytest.raises(library.ModelError, match=r"lcprune\.load\(folder, model\)"):
        library.load("own")
    assert lcprune("export", "own.py:net", "--weights", "own", "--format", "safetensors", "--out", "x").code == 0
    assert lcprune("evaluate", ".").code == 2


def test_a_run_of_several_networks_names_them(lcprune, halved, tmp_path):
    run = RunFolder.create(tmp_path / "many", "pareto", {"model": "digits_resnet"})
    plan = library.Plan.load(halved["naive"] / "plan.json")
    library.save(run.file("networks/naive-50-pc"), library.load(halved["naive"]), plan)
    for words in (["evaluate", "many", "--data", "digits"], ["plan", "many"]):
        said = lcprune(*words)
        assert said.code == 2 and "networks/naive-50-pc" in said.err


def test_weights_and_a_plan_alone_are_a_network(halved, tmp_path):
    network, plan = library.load(halved["naive"]), library.Plan.load(halved["naive"] / "plan.json")
    x = models.example_input(few_digits.NET, 4)
    torch.save({"state_dict": {f"module.{k}": v for k, v in network.state_dict().items()}}, tmp_path / "plain.pt")
    fresh = models.build(few_digits.NET, 10)
    for source in (tmp_path / "plain.pt", network.state_dict()):
        assert torch.equal(library.load(source, fresh, plan).eval()(x), network.eval()(x))
    plan.save(tmp_path / "other.json")
    assert torch.equal(library.load(tmp_path / "plain.pt", None, tmp_path / "other.json").eval()(x), network(x))
    with pytest.raises(library.PlanError, match="does not fit"):
        library.load(fresh.state_dict(), fresh, plan)


def test_a_plan_is_shown_before_anything_is_cut_and_after(lcprune, halved, quick, tmp_path):
    dry = ["--macs", "50%", "--method", "naive", "--ignore", "layer3.*", "-q"]
    said = lcprune("plan", halved["naive"].parent.parent / "none", *dry)
    assert said.code == 2
    said = lcprune("plan", "digits_resnet", *dry, "--out", "plan.json")
    assert said.code == 0, said.err
    assert "16 ->" in said.out and "ignored on request" in said.out and "reaches the network's output" in said.out
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json"}
    plan = library.Plan.load("plan.json")
    assert plan.summary() + "\n" == said.out == lcprune("plan", "plan.json").out
    assert sum(layer["macs"][1] for layer in plan.layers.values()) == plan.macs
    assert lcprune("plan", "digits_resnet", *dry, "--out", "plan.json").code == 2
    assert json.loads(lcprune("prune", "digits_resnet", *dry, "--dry-run", "--json").out)["macs"] == plan.macs
    after = lcprune("plan", halved["naive"]).out
    assert after == library.Plan.load(halved["naive"] / "plan.json").summary() + "\n"
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json"}


def test_every_study_leaves_layers_alone_that_it_is_told_to(lcprune, trained, quick, few):
    for command, more in (("prune", ["--method", "naive"]), ("pareto", ["--methods", "naive"])):
        said = lcprune(command, trained, "--macs", "70%", *more, "--ignore", "layer1.*", *quick, "--out", command,
                       "--no-report", "-q")  # fmt: skip
        assert said.code == 0, said.err
        plan = library.Plan.load(f"{command}/networks/naive-70-pc/plan.json")
        assert not any(name.startswith("layer1.") for name in plan.kept)
        assert RunFolder.open(command).settings["ignore"] == ["layer1.*"]
