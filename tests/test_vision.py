"""torchvision and timm can be imported, whatever build of PyTorch stands beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lcprune import vision
from lcprune.errors import MissingDependencyError


def test_torchvision_imports_and_builds_a_network():
    torchvision = vision.import_torchvision()
    assert torchvision.models.resnet18(num_classes=3).fc.out_features == 3


def test_timm_imports_in_a_fresh_process_where_nothing_was_imported_before():
    code = (
        "from lcprune.vision import import_timm;"
        "print(import_timm().create_model('resnet10t', num_classes=2).num_classes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match=r"timm is not installed.*pip install lcprune\[vision\]"):
        vision.import_timm()


def test_other_errors_of_torchvision_are_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def fail(name: str):
        raise RuntimeError("operator torchvision::roi_align does not exist")

    monkeypatch.setattr(vision.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="roi_align"):
        vision.import_torchvision()
