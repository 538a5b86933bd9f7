"""Building by name and reading weights: every wrapping is taken off, every misfit is told key by key."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils._pytree import tree_leaves

from lcprune import models, vision
from lcprune.errors import MissingDependencyError, ModelError


def test_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ModelError, match=r"'resnet57'.*resnet56.*torchvision:NAME.*file\.py:factory"):
        models.build("resnet57")


def test_factory_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\nINPUT_SHAPE = (4,)\ndef net(num_classes=3): return nn.Linear(4, num_classes)\n"
    )
    model = models.build(f"{file}:net", num_classes=5)
    assert isinstance(model, nn.Linear) and model.out_features == 5
    assert models.example_input(f"{file}:net", batch_size=2).shape == (2, 4)
    with pytest.raises(ModelError, match="no function called 'other'"):
        models.build(f"{file}:other")
    with pytest.raises(ModelError, match="no file"):
        models.build(f"{tmp_path}/absent.py:net")


@pytest.mark.parametrize(
    ("said", "shapes"),
    [
        ("(3, 8, 8)", [(2, 3, 8, 8)]),
        ("((3, 8, 8), (5, 'int64'))", [(2, 3, 8, 8), (2, 5)]),
        ("{'image': (3, 8, 8), 'kind': ('int64',)}", [(2, 3, 8, 8), (2,)]),
    ],
)
def test_a_file_says_what_its_network_takes(tmp_path: Path, said: str, shapes: list[tuple[int, ...]]) -> None:
    (tmp_path / "mine.py").write_text(f"INPUT_SHAPE = {said}\ndef net(): pass\n")
    example = models.example_input(f"{tmp_path}/mine.py:net", batch_size=2)
    leaves = tree_leaves(example)
    assert [tuple(leaf.shape) for leaf in leaves] == shapes
    assert [leaf.dtype for leaf in leaves] == [torch.float32, torch.int64][: len(leaves)]
    with pytest.raises(ModelError, match="'int65' is no type"):
        models.example_input("resnet20", shape=(3, "int65"))


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """Its neighbours hide neither installed packages nor those of another file, and are not found afterwards."""
    for folder, width in (("a", 3), ("b", 7)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_parts.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / folder / "json.py").write_text("raise RuntimeError('hides the standard library')\n")
        (tmp_path / folder / "typer.py").write_text("raise RuntimeError('hides an installed package')\n")
        (tmp_path / folder / "mine.py").write_text(
            "import json, typer\nfrom torch import nn\nfrom own_parts import WIDTH\n"
            "def net():\n    import own_parts\n    return nn.Linear(WIDTH, own_parts.WIDTH)\n"
        )
    before = list(sys.path)
    for folder, width in (("a", 3), ("b", 7)):
        assert models.build(f"{tmp_path / folder}/mine.py:net").weight.shape == (width, width)
    assert sys.path == before


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


def test_networks_of_torchvision_and_timm() -> None:
    try:
        vision.import_timm()
    except MissingDependencyError:
        pytest.skip("timm is not installed")
    assert models.example_input("torchvision:inception_v3").shape == (1, 3, 299, 299)
    model = models.build("torchvision:mobilenet_v2", num_classes=5)
    assert model.classifier[1].out_features == 5
    assert models.build("timm:mobilenetv2_100", num_classes=5).get_classifier().out_features == 5
    with pytest.raises(ModelError, match="torchvision has no network"):
        models.build("torchvision:resnet51")
    with pytest.raises(ModelError, match="timm has no network"):
        models.build("timm:resnet51")
