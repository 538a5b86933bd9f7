"""Building by name: our networks, those of other packages, and factories in files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
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


def test_networks_of_torchvision_and_timm() -> None:
    try:
        vision.import_timm()
    except MissingDependencyError:
        pytest.skip("timm is not installed")
    assert models.example_input("torchvision:inception_v3").shape == (1, 3, 299, 299)
    assert models.example_input("torchvision:s3d").shape == (1, 3, 16, 224, 224)
    assert [frame.shape for frame in models.example_input("torchvision:raft_small")] == 2 * [(1, 3, 128, 128)]
    model = models.build("torchvision:mobilenet_v2", num_classes=5)
    assert model.classifier[1].out_features == 5
    assert models.build("timm:mobilenetv2_100", num_classes=5).get_classifier().out_features == 5


@pytest.mark.parametrize("ask", [models.build, models.input_shape, models.example_input])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm:resnet51", "timm has no network called 'resnet51'; did you mean 'resnet5"),
        ("timm:UNKNOWN", "timm has no network called 'UNKNOWN'; choose one of timm.list_models()"),
        ("timm:resnet50.UNKNOWN", "timm:resnet50.UNKNOWN"),
        ("torchvision:resnet51", "torchvision has no network called 'resnet51'; did you mean 'resnet50'"),
        ("torchvision:UNKNOWN", "'UNKNOWN'; choose one of torchvision.models.list_models()"),
        ("UNKNOWN", "no network is called 'UNKNOWN': expected one of resnet20, "),
        ("mine.py", "name the function in it that builds the network, e.g. mine.py:build"),
    ],
)
def test_names_that_nobody_knows_are_refused_with_a_way_out(ask: Any, name: str, said: str) -> None:
    if name.startswith("timm:"):
        try:
            vision.import_timm()
        except MissingDependencyError:
            pytest.skip("timm is not installed")
    with pytest.raises(ModelError, match=re.escape(said)):
        ask(name)
