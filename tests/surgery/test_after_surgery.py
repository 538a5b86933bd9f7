"""A pruned network is an ordinary network: it prints, trains, compiles, exports and is pruned again."""

from __future__ import annotations

import logging

import pytest
import torch
from oracle import worst_difference
from selections import pruned, select, traced
from zoo import ZOO

import lcprune

NAMES = ("Residual", "ShuffleNetUnit", "OptionAShortcut", "ConvNeXtBlock", "Res2NetBlock")


def test_print_shows_the_new_sizes() -> None:
    model, _, graph = traced("Residual")
    text = str(graph.plan({"block1.0": [0, 2]}).apply(model))
    assert "Conv2d(8, 2, kernel_size=(3, 3)" in text
    assert "Conv2d(2, 8, kernel_size=(3, 3)" in text


@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_works(name: str) -> None:
    model, inputs, graph = traced(name)
    smaller = graph.plan(select(graph, "half")).apply(model).train()
    optimiser = torch.optim.SGD(smaller.parameters(), lr=1e-3)
    loss = smaller(*inputs).pow(2).mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in smaller.parameters())
    optimiser.step()
    assert torch.isfinite(smaller(*inputs)).all()


@pytest.mark.parametrize("name", NAMES)
def test_exports_and_compiles(name: str) -> None:
    _, inputs, _ = traced(name)
    smaller = pruned(name, "half")[2]
    with torch.no_grad():
        expected = smaller(*inputs)
        exported = torch.export.export(smaller, inputs).module()(*inputs)
        compiled = torch.compile(smaller, backend="eager", fullgraph=True)(*inputs)
    assert worst_difference(exported, expected) < 1e-5
    assert worst_difference(compiled, expected) < 1e-5


@pytest.mark.parametrize("name", ["Residual", "OptionAShortcut"])
def test_exports_to_onnx(name: str, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    _, inputs, _ = traced(name)
    smaller = pruned(name, "half")[2]
    path = tmp_path / "model.onnx"
    torch.onnx.export(smaller, inputs, path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: inputs[0].numpy()})[0]
    with torch.no_grad():
        assert worst_difference(torch.from_numpy(found), smaller(*inputs)) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_is_pruned_again(name: str) -> None:
    model, inputs, graph = traced(name)
    kept = {group.name: list(range(max(1, group.size * 3 // 4))) for group in graph.groups}
    once = graph.plan(kept).apply(model)
    again = lcprune.trace(once, inputs)
    plan = again.plan(select(again, "half"))
    assert lcprune.verify(once, plan, inputs).ok
    assert plan.macs < again.macs < graph.macs


@pytest.mark.parametrize("name", [*NAMES, "BlurByShape", "TiedWeights"])
def test_save_and_load_without_pickle(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs, _ = traced(name)
    _, plan, smaller = pruned(name, "half")
    lcprune.save(tmp_path / "run", smaller, plan)
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {"plan.json", "model.safetensors"}

    def no_pickle(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    monkeypatch.setattr("pickle.load", no_pickle)
    monkeypatch.setattr("torch.load", no_pickle)
    loaded = lcprune.load(tmp_path / "run", ZOO[name].factory())
    with torch.no_grad():
        assert worst_difference(loaded(*inputs), smaller(*inputs)) == 0.0


def test_loads_tuned_weights_not_the_fresh_ones(tmp_path) -> None:
    _, inputs, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    smaller = plan.apply(ZOO["Residual"].factory())
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.mul_(1.5)
    lcprune.save(tmp_path / "run", smaller, plan)
    loaded = lcprune.load(tmp_path / "run", ZOO["Residual"].factory())
    assert worst_difference(loaded(*inputs), smaller(*inputs)) == 0.0


def test_damaged_weights_are_refused(tmp_path) -> None:
    _, plan, smaller = pruned("Residual", "half")
    lcprune.save(tmp_path / "run", smaller, plan)
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(lcprune.LcpruneError, match=r"model\.safetensors"):
        lcprune.load(tmp_path / "run", ZOO["Residual"].factory())


def test_save_refuses_a_network_that_the_plan_did_not_make(tmp_path) -> None:
    model, _, _ = traced("Residual")
    _, plan, _ = pruned("Residual", "half")
    with pytest.raises(lcprune.PlanError):
        lcprune.save(tmp_path / "run", model, plan)
    assert not (tmp_path / "run" / "plan.json").exists()


def test_load_names_a_missing_folder(tmp_path) -> None:
    with pytest.raises((lcprune.LcpruneError, FileNotFoundError), match="nowhere"):
        lcprune.load(tmp_path / "nowhere", ZOO["Residual"].factory())
