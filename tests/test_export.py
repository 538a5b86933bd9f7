"""Exported networks compute the same elsewhere; what does not is never called done."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lcprune
from lcprune import models
from lcprune.errors import ExportError
from lcprune.export import _compare, export


@pytest.fixture(scope="module")
def pruned():
    torch.manual_seed(0)
    model = models.build("digits_resnet", num_classes=10).eval()
    example = models.example_input("digits_resnet")
    result = lcprune.prune(model, example, macs=0.5, method="naive", progress=False)
    return result.model.eval(), result.plan, example


def test_onnx_runs_in_onnxruntime_with_any_batch(pruned, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, _, example = pruned
    done = export(model, example, tmp_path / "n.onnx", "onnx")
    assert done.max_error < 1e-5 and done.bytes == (tmp_path / "n.onnx").stat().st_size
    session = onnxruntime.InferenceSession(str(tmp_path / "n.onnx"), providers=["CPUExecutionProvider"])
    x = torch.randn(5, *example.shape[1:])
    (output,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(output, model(x).detach().numpy(), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["n.onnx"]


def test_torch_export_file_runs_with_any_batch(pruned, tmp_path):
    model, _, example = pruned
    export(model, example, tmp_path / "n.pt2", "torch")
    program = torch.export.load(io.BytesIO((tmp_path / "n.pt2").read_bytes())).module()
    x = torch.randn(5, *example.shape[1:])
    torch.testing.assert_close(program(x), model(x))


def test_safetensors_come_with_the_plan_and_load_into_a_fresh_network(pruned, tmp_path):
    model, plan, example = pruned
    export(model, example, tmp_path / "n", "safetensors", plan)
    again = lcprune.load(tmp_path / "n", models.build("digits_resnet", num_classes=10)).eval()
    torch.testing.assert_close(again(example), model(example), rtol=0, atol=0)


def test_safetensors_without_a_plan_are_the_weights(tmp_path):
    model = models.build("digits_resnet", num_classes=10).eval()
    export(model, models.example_input("digits_resnet"), tmp_path / "n", "safetensors")
    assert set(load_file(tmp_path / "n" / "model.safetensors")) == set(model.state_dict())


def test_the_network_is_left_as_it_was(pruned, tmp_path):
    model, _, example = pruned
    model.train()
    try:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        export(model, example, tmp_path / "n.pt2", "torch")
        assert model.training
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    finally:
        model.eval()


def test_a_file_that_computes_something_else_is_refused():
    expected = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    assert _compare("x", [expected, expected[:1]], expected) == 0
    for wrong in (expected + 0.01, expected * torch.nan, expected[:, :1]):
        with pytest.raises(ExportError, match=r"x (differs|gives)"):
            _compare("x", [wrong], expected)


class Branchy(nn.Module):
    """Decides in Python on values: no exporter can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_what_cannot_be_exported_leaves_no_file(form, tmp_path: Path):
    with pytest.raises(ExportError, match=f"{form} export failed"):
        export(Branchy(), torch.ones(1, 3), tmp_path / "n.out", form)
    assert list(tmp_path.iterdir()) == []


class Two(nn.Module):
    """Two inputs, one of them whole numbers, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, 8, 3), nn.Embedding(4, 8)
        self.head, self.size = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, image: torch.Tensor, where: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.conv(image).relu().mean((2, 3)) + self.place(where)
        return {"score": self.head(features), "size": self.size(features)}


@pytest.mark.parametrize("as_names", [False, True])
def test_several_inputs_and_outputs(as_names, tmp_path):
    torch.manual_seed(0)
    model = Two().eval()
    example = {"where": torch.tensor([0, 3, 1]), "image": torch.randn(3, 3, 8, 8)}
    given = example if as_names else (example["image"], example["where"])
    plan = lcprune.prune(model, given, macs=0.5, method="naive", progress=False).plan
    small = plan.apply(model)
    expected = small(**example)
    assert export(small, given, tmp_path / "n.pt2", "torch").max_error < 1e-5
    program = torch.export.load(io.BytesIO((tmp_path / "n.pt2").read_bytes())).module()
    output = program(**example) if as_names else program(*given)
    torch.testing.assert_close(output["score"], expected["score"])
    onnxruntime = pytest.importorskip("onnxruntime")
    export(small, given, tmp_path / "n.onnx", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "n.onnx"), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["score", "size"]
    score, _ = session.run(None, {name: value.numpy() for name, value in example.items()})
    np.testing.assert_allclose(score, expected["score"].detach().numpy(), atol=1e-5)


def test_unknown_formats_and_no_outputs_are_explained(tmp_path):
    with pytest.raises(ExportError, match="choose one of onnx, torch, safetensors"):
        export(nn.Linear(3, 2), torch.ones(1, 3), tmp_path / "n", "tflite")

    class Mute(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            return None

    with pytest.raises(ExportError, match="no tensor"):
        export(Mute(), torch.ones(1, 3), tmp_path / "n", "onnx")
