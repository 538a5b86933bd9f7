"""Reading weights: every wrapping is taken off, every misfit is told key by key, other shortcuts are converted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from lcprune import models
from lcprune.errors import ModelError


def test_weights_of_a_network_that_a_trainer_holds(tmp_path: Path) -> None:
    model = models.build("digits_resnet")
    state = model.state_dict()
    inside = {f"model.{name}": value for name, value in state.items()}
    torch.save({"state_dict": {**inside, "loss.weight": torch.ones(10)}, "epoch": 3}, tmp_path / "a.ckpt")
    other = models.build("digits_resnet", weights=tmp_path / "a.ckpt")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in state.items())
    twice = {**inside, **{f"ema.{name}": value for name, value in state.items()}}
    with pytest.raises(ModelError, match=r"holds the network 2 times, under 'model\.' and 'ema\.'"):
        models.load_weights(other, twice)
    with pytest.raises(ModelError, match=r"All names in the file begin with 'net\.', and without it they do not fit"):
        models.load_weights(other, {f"net.{name}1": value for name, value in state.items()})


@pytest.mark.parametrize("wrapping", ["plain", "state_dict", "data_parallel", "compiled", "safetensors"])
def test_weights_come_out_of_their_wrapping(tmp_path: Path, wrapping: str) -> None:
    model = models.build("digits_resnet")
    state = model.state_dict()
    file = tmp_path / ("w.safetensors" if wrapping == "safetensors" else "w.pth")
    if wrapping == "safetensors":
        save_file(state, file)
    elif wrapping == "plain":
        torch.save(state, file)
    elif wrapping == "state_dict":
        torch.save({"state_dict": state, "best": 93.6, "epoch": 3}, file)
    elif wrapping == "data_parallel":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, file)
    else:
        torch.save({"model": {f"module._orig_mod.{k}": v for k, v in state.items()}}, file)
    other = models.build("digits_resnet", weights=file)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in state.items())


def test_misfit_is_told_key_by_key(tmp_path: Path) -> None:
    state = models.build("digits_resnet").state_dict()
    del state["bn1.weight"]
    state["conv1.weight"] = torch.zeros(16, 3, 3, 3)
    state["extra"] = torch.zeros(2)
    with pytest.raises(ModelError) as caught:
        models.load_weights(models.build("digits_resnet"), state)
    message = str(caught.value)
    assert "missing: bn1.weight (16,)" in message
    assert "not in the network: extra (2,)" in message
    assert "shape: conv1.weight is (16, 1, 3, 3) in the network, (16, 3, 3, 3) in the file" in message


def test_a_new_head_must_be_asked_for() -> None:
    state = models.build("digits_resnet", num_classes=10).state_dict()
    with pytest.raises(ModelError, match="new_head=True"):
        models.build("digits_resnet", num_classes=4, weights=state)
    model = models.build("digits_resnet", num_classes=4, weights=state, new_head=True)
    assert torch.equal(model.state_dict()["conv1.weight"], state["conv1.weight"])


def test_code_in_a_weight_file_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    file = tmp_path / "w.pth"
    torch.save({"weight": torch.zeros(1), "x": Bomb()}, file, pickle_module=pickle)
    with pytest.raises(ModelError, match="does not run code"):
        models.build("digits_resnet", weights=file)
    assert not (tmp_path / "ran").exists()


def test_damaged_or_missing_weights(tmp_path: Path) -> None:
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ModelError, match="readable"):
            models.build("digits_resnet", weights=tmp_path / name)
    with pytest.raises(ModelError, match="no weights at"):
        models.build("digits_resnet", weights=tmp_path / "absent.pth")


class CentredShortcut(nn.Module):
    """The shortcut of the trainings in question."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels // 4, self.channels // 4))


def test_converted_weights_compute_the_same() -> None:
    centred = models.build("resnet20").eval()
    centred.layer2[0].shortcut = CentredShortcut(32)
    centred.layer3[0].shortcut = CentredShortcut(64)
    for module in centred.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
    x = models.example_input("resnet20", batch_size=2)
    state = {f"module.{name}": value for name, value in centred.state_dict().items()}
    ours = models.build("resnet20", weights=models.from_centred(state)).eval()
    as_it_is = models.build("resnet20", weights=state).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), centred(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(as_it_is(x), centred(x), atol=0.1), "the conversion is needed"


def test_other_weights_are_refused() -> None:
    with pytest.raises(ModelError, match="not the weights of a CIFAR ResNet"):
        models.from_centred({"conv1.weight": torch.zeros(1)})
